"""The text of an HTML page in sections, by the standard library's parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

from ratchet.authors.knowledge.section import Section

UNSEEN: Final = frozenset({"script", "style", "noscript", "template", "svg", "nav", "footer"})
BLOCKS: Final = frozenset(
    ("p", "div", "br", "li", "ul", "ol", "tr", "table", "pre", "section", "article", "blockquote")
)
HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")


class _TextPage(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Section] = []
        self._above: list[str] = []
        self._parts: list[str] = []
        self._unseen = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in UNSEEN:
            self._unseen += 1
        elif tag in HEADINGS:
            self._end_section()
        elif tag in BLOCKS:
            self._parts.append("\n")
        elif tag in ("td", "th"):
            self._parts.append(" | ")
        self._verbatim += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag in HEADINGS:
            heading = " ".join("".join(self._parts).split())
            self._above = [*self._above[: HEADINGS.index(tag)], heading]
            self._parts = []
        elif tag in BLOCKS:
            self._parts.append("\n")
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def close(self) -> None:
        super().close()
        self._end_section()

    def _end_section(self) -> None:
        text = re.sub(r"\n\s*\n\s*", "\n\n", "".join(self._parts)).strip()
        place = " > ".join(one for one in self._above if one)
        self.found.append(Section(place=place, text=text))
        self._parts = []


def html_sections(text: str) -> list[Section]:
    """Return the visible text below each heading, without scripts, styles and navigation."""
    page = _TextPage()
    page.feed(text)
    page.close()
    return page.found
