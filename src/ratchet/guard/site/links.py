"""The names of a site's pages, the links between them, and those to the forge."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from ratchet.base.errors import RatchetError
from ratchet.base.show import model as m
from ratchet.base.show.words import show_moment
from ratchet.guard.history.plot import short_revision

COMMIT: Final = "{commit}"
HEX: Final = re.compile(r"[0-9a-f]{12,64}")
PAGE_NAME: Final = re.compile(
    r"(index|matrix|incidents|series|runs|recipes|kernels|verdicts|devices)(-[0-9]+)?\.html"
    r"|(series|run|recipe|kernel|verdict|device|incident)-[0-9a-f]+\.html"
)
"""Names that a site gives to its files: only these are ever removed from its folder."""
LISTS: Final = {
    "index": "Overview",
    "matrix": "Matrix",
    "incidents": "Incidents",
    "series": "Series",
    "runs": "Runs",
    "recipes": "Recipes",
    "kernels": "Kernels",
    "verdicts": "Verdicts",
    "devices": "Devices",
}
MOST_LETTERS: Final = 160  # Of a name; the rest shows on hover
MOST_HOVERED: Final = 600


@dataclass(kw_only=True, slots=True)
class SiteLinks:
    """The pages that a site has, by what they are about: a thing without a page gets no link."""

    commit_url: str = ""
    places: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, kind: str, key: str) -> str:
        """Give a page to a thing; return the page's name."""
        page = f"{kind}-{digits_of(key)}.html"
        self.places[kind, key] = page
        return page

    def href(self, kind: str, key: str) -> str:
        """Return a thing's page; empty if it has none."""
        return self.places.get((kind, key), "")

    def to(self, kind: str, key: str, text: str) -> m.Span:
        """Return a text that links to a thing's page, if it has one."""
        return clipped(text, href=self.href(kind, key))

    def commit(self, revision: str) -> m.Span:
        """Return a commit's short name, linked to the forge; empty if it is not known."""
        short = short_revision(revision)
        return clipped(short, full=revision if short != revision else "", href=self.forge(revision))

    def forge(self, revision: str) -> str:
        """Return the page of a commit on the forge; its uncommitted changes are not there."""
        hash = revision.partition("+")[0]
        return self.commit_url.replace(COMMIT, quote(hash, safe="")) if hash else ""


def check_commit_url(template: str) -> str:
    """Return a template of a commit's address on the forge; RatchetError if it is none."""
    try:
        parts = urlsplit(template)
        right = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        right = False
    if template and (not right or template.count(COMMIT) != 1 or not template.isprintable()):
        raise RatchetError(
            f"--commit-url {template!r} is no template: give an address that begins with https:// "
            "and holds {commit} once, such as https://github.com/me/project/commit/{commit}"
        )
    return template


def digits_of(key: str) -> str:
    """Return hexadecimal digits that name a thing's file; a hash gives its own first ones."""
    whole = HEX.fullmatch(key)
    return key[:12] if whole else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:12]


def clipped(text: str, *, full: str = "", href: str = "", look: str = "") -> m.Span:
    """Return a name of bearable length, which is whole on hover."""
    if len(text) > MOST_LETTERS:
        return m.Span(f"{text[:MOST_LETTERS]}...", look, (full or text)[:MOST_HOVERED], href)
    return m.Span(text, look, full[:MOST_HOVERED], href)


def moment(at: str) -> m.Span:
    """Return a row's time to the minute, in UTC."""
    return m.Span(show_moment(at).removesuffix(" UTC")[:40] if at else "", "when")


def list_page(kind: str, number: int = 1) -> str:
    """Return the name of a list's page; the first has no number."""
    return f"{kind}.html" if number == 1 else f"{kind}-{number}.html"


def navigation(current: str) -> tuple[m.Span, ...]:
    """Return the links at the top of each page; that of the current list is marked."""
    return tuple(
        m.Span(title, "here" if kind == current else "", href=list_page(kind))
        for kind, title in LISTS.items()
    )


PER_PAGE: Final = 250


def paged(
    kind: str,
    rows: Sequence[object],
    page: Callable[[Sequence[object], m.ReportBlock | None], m.ResultReport],
) -> dict[str, Callable[[], m.ResultReport]]:
    """Return a list's pages: each makes the report of its rows, with the links to the others."""
    count = max(1, -(-len(rows) // PER_PAGE))

    def one(number: int) -> Callable[[], m.ResultReport]:
        own = rows[(number - 1) * PER_PAGE : number * PER_PAGE]
        return lambda: page(own, _turner(kind, number, count))

    return {list_page(kind, number): one(number) for number in range(1, count + 1)}


def _turner(kind: str, number: int, count: int) -> m.ReportBlock | None:
    if count == 1:
        return None
    found: list[str | m.Span] = [f"Page {number} of {count}: "]
    near = {1, count, *range(number - 3, number + 4)} & {*range(1, count + 1)} - {number}
    for other in sorted(near):
        found += [m.Span(str(other), href=list_page(kind, other)), " "]
    return m.Words(tuple(found), "turner", on="page")
