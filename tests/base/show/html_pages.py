"""A page as a parser and as a real browser see it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--dump-dom",
)
_PAGE = """<iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe>
"""
_HARNESS = """<!doctype html><title>harness</title><body style="margin:0">
{pages}<pre id="found">waiting</pre>
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map((frame) => {{
  const inner = frame.contentWindow;
  const root = inner.document.documentElement;
  return {{
    title: inner.document.title,
    scroll: root.scrollWidth,
    client: root.clientWidth,
    loads: inner.performance.getEntriesByType("resource").map((entry) => entry.name),
    sections: inner.document.querySelectorAll("section").length,
    scripts: inner.document.querySelectorAll("script, img, iframe").length,
    dots: inner.document.querySelector(".dots path")?.getBoundingClientRect().width ?? 0,
    probed: ({probe})(inner.document),
  }}; }});
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>"""
HOSTILE = "<script>document.title='owned'</script>\"><img src=x onerror=\"document.title='owned'\">"


class _Tags(HTMLParser):
    """Collects every tag with its attributes, and checks that they are closed in order."""

    _VOID = frozenset({"meta", "link", "path", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every tag with its attributes; all are closed in order."""
    parser = _Tags()
    parser.feed(page)
    assert parser.open == []
    return parser.found


def hostile(value: Any, *, but: Collection[str] = ()) -> Any:
    """The same document with something hostile in each of its texts, but for those fields."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [hostile(item, but=but) for item in value]
    if isinstance(value, dict):
        return {k: item if k in but else hostile(item, but=but) for k, item in value.items()}
    return value


def in_chromium(
    page: str, folder: Path, width: int, probe: str = "() => null"
) -> tuple[dict[str, Any], str]:
    """What the browser found in the page, and what it wrote on its console.

    `probe` is a function in JavaScript that is given the page's document once it is loaded.
    """
    (found,), console = all_in_chromium([(page, width)], folder, probe)
    return found, console


def all_in_chromium(
    pages: Sequence[tuple[str, int]], folder: Path, probe: str = "() => null"
) -> tuple[list[dict[str, Any]], str]:
    """The same of several pages, each of its width, in one browser: it takes long to start."""
    harness = folder / "harness.html"
    frames = "".join(_PAGE.format(width=width, page=html.escape(page)) for page, width in pages)
    harness.write_text(_HARNESS.format(pages=frames, probe=probe))
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", harness.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(html.unescape(found.group(1))), console
