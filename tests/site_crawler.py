"""Follows every link of a site, as a reader would, and names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class PageLinks(HTMLParser):
    """The links, the ids, and everything that would load or run, of one page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.foreign: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.ids.add(str(named["id"]))
        if tag == "a":
            self.links.append(str(named.get("href")))
        if tag in ("img", "iframe", "object", "embed", "base", "form") or "src" in named:
            self.foreign.append(tag)
        if tag == "link" and named.get("href") != "data:,":
            self.foreign.append(tag)
        self.foreign += [name for name, _ in attrs if name.startswith("on")]


def crawl(page_of: Callable[[str], bytes | None]) -> tuple[dict[str, PageLinks], set[str]]:
    """Return every page that the index leads to, and the links that leave the site.

    AssertionError for a dead link, an anchor that is not there, or something that loads or runs.
    """
    seen: dict[str, PageLinks] = {}
    outside: set[str] = set()
    waiting = ["index.html"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        page = page_of(name)
        assert page is not None, f"a dead link leads to {name}"
        found = seen[name] = PageLinks(page.decode())
        assert found.foreign == [], (name, found.foreign)
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("http", "https"), (name, link)
                outside.add(link)
                continue
            assert parts.path or parts.fragment, (name, link)
            if parts.path:
                waiting.append(unquote(parts.path))
    for name, found in seen.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.fragment and not parts.scheme:
                assert parts.fragment in seen[parts.path or name].ids, (name, link)
    return seen, outside
