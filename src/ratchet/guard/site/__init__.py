"""A site out of a ledger: linked static pages that open from a folder, and load nothing.

`site_pages` reads the ledger and returns every page as a function that renders it, so that a server
renders only what is asked for. `write_site` writes them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from ratchet.base import files
from ratchet.base.errors import LedgerError
from ratchet.base.ledger import Ledger
from ratchet.base.show import model as m
from ratchet.base.show.page import render_badge, render_page
from ratchet.base.show.words import counted, show_bytes
from ratchet.guard.history.show import WAITING
from ratchet.guard.site.evidence import (
    DAMAGED,
    device_page,
    kernel_page,
    recipe_page,
    run_page,
    unreadable,
    verdict_page,
)
from ratchet.guard.site.facts import SiteFacts, read_facts
from ratchet.guard.site.links import LISTS, PAGE_NAME, check_commit_url, navigation
from ratchet.guard.site.lists import list_pages
from ratchet.guard.site.series import incident_page, series_page

MARK: Final = '<meta name="generator" content="ratchet site">'
"""The head of every page of a site."""
BADGE: Final = "badge.svg"
MOST_BYTES: Final = 500_000  # Of a page; what is too large for it is left out, and the page says so
HEAD_BYTES: Final = 64_000  # The style comes before the mark
Report = Callable[[], m.ResultReport]
PAGES: Final[Mapping[str, Callable[[SiteFacts, Any], m.ResultReport]]] = {
    "series": series_page,
    "incident": incident_page,
    "run": run_page,
    "recipe": recipe_page,
    "kernel": kernel_page,
    "verdict": verdict_page,
    "device": device_page,
}
"""The page of each kind of thing that has one of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePages:
    """The pages of a ledger by their names, and what is not in them."""

    reports: Mapping[str, Report]
    facts: SiteFacts

    def render(self, name: str, *, reload_s: int | None = None) -> bytes:
        """Return a page as HTML of at most MOST_BYTES; KeyError if the site has none of the name.

        Raises LedgerError: the ledger fails.
        """
        kind = name.partition(".")[0].partition("-")[0]
        kind = {"incident": "incidents", "series": "series"}.get(kind, kind)
        listed = kind if kind in LISTS else f"{kind}s"
        try:
            report = self._framed(self.reports[name](), listed, reload_s)
            return fitted(report)
        except LedgerError:
            raise
        except DAMAGED:
            if name not in self.reports:
                raise
            what = m.ResultReport(title=kind, heading=kind, sections=(unreadable(kind),))
            return fitted(self._framed(what, listed, reload_s))

    def _framed(self, report: m.ResultReport, listed: str, reload_s: int | None) -> m.ResultReport:
        extras = {**report.extras, "head": Markup(MARK)}
        return replace(report, links=navigation(listed), reload_s=reload_s, extras=extras)


def badge(facts: SiteFacts) -> str:
    """Return a badge (SVG) for a README: how many incidents need somebody."""
    waiting = sum(one.state in WAITING for one in facts.incidents)
    if not facts.results:
        return render_badge("ratchet", "nothing measured", "")
    said = f"{waiting} regressed" if waiting else "no regression"
    return render_badge("ratchet", said, "no" if waiting else "yes")


def site_pages(ledger: Ledger, commit_url: str = "") -> SitePages:
    """Read a ledger; return its pages, which are rendered when they are asked for.

    Raises RatchetError: the template is none, or the ledger fails.
    """
    facts = read_facts(ledger, check_commit_url(commit_url))
    found: dict[str, Report] = dict(list_pages(facts))
    for kind, key, thing in facts.things():
        found[facts.links.href(kind, key)] = partial(PAGES[kind], facts, thing)
    return SitePages(reports=found, facts=facts)


def fitted(report: m.ResultReport) -> bytes:
    """Return a page of at most MOST_BYTES: its largest sections give way to a line each."""
    page = render_page(report).encode()
    sections = list(report.sections)
    while len(page) > MOST_BYTES and sections:
        sizes = [len(render_page(replace(report, header=(), sections=(one,)))) for one in sections]
        largest = sizes.index(max(sizes))
        title = getattr(sections.pop(largest), "title", "A part")
        said = m.note(f"{title} is too large for a page of a site, and is left out.")
        report = replace(report, header=(*report.header, said), sections=tuple(sections))
        page = render_page(report).encode()
    if len(page) > MOST_BYTES:
        said = m.Words("This is too large for a page of a site.")
        page = render_page(replace(report, headline="", header=(said,), sections=())).encode()
    return page


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteWritten:
    """The pages that were written, and what the site leaves out."""

    folder: str
    pages: int
    size_bytes: int
    largest_bytes: int
    removed: int  # Pages of an earlier site that no page links to any more
    results: int
    open_incidents: int
    left_out: dict[str, int]  # Things without a page, by kind


def write_site(ledger: Ledger, out: Path, commit_url: str = "") -> SiteWritten:
    """Write every page of a ledger to a folder; pages of an earlier site that are old go.

    Raises RatchetError: the ledger fails, the template is none, or the folder takes no file.
    """
    site = site_pages(ledger, commit_url)
    files.make_folder(out, "--out")
    sizes = []
    # The overview is what tells a site from another folder: a killed run leaves one.
    for name in sorted(site.reports, key=lambda one: one != "index.html"):
        page = site.render(name)
        files.write_whole(out / name, page)
        sizes.append(len(page))
    facts = site.facts
    files.write_whole(out / BADGE, badge(facts).encode())
    every = {
        "series": facts.every_series - len(facts.series) + len(facts.faults),
        "runs": facts.runs.every - len(facts.runs.rows),
        "recipes": facts.recipes.every - len(facts.recipes.rows),
        "kernels": facts.every_kernel - len(facts.kernels),
        "verdicts": facts.verdicts.every - len(facts.verdicts.rows),
    }
    return SiteWritten(
        folder=str(out),
        pages=len(sizes),
        size_bytes=sum(sizes),
        largest_bytes=max(sizes),
        removed=_remove_old(out, site.reports),
        results=facts.results,
        open_incidents=sum(one.state == "open" for one in facts.incidents),
        left_out={kind: count for kind, count in every.items() if count},
    )


def _remove_old(out: Path, kept: Mapping[str, Report]) -> int:
    """Remove pages of an earlier site that this one has not; return how many."""
    count = 0
    with contextlib.suppress(OSError):
        for path in out.glob("*.html"):
            if path.name in kept or not PAGE_NAME.fullmatch(path.name) or path.is_symlink():
                continue
            with path.open("rb") as file:
                ours = MARK.encode() in file.read(HEAD_BYTES)
            if ours:
                path.unlink()
                count += 1
    return count


def site_report(written: SiteWritten) -> m.ResultReport:
    left = ", ".join(f"{count:,} {kind}" for kind, count in written.left_out.items())
    return m.ResultReport(
        headline=(
            f"{counted(written.pages, 'page')} of {counted(written.results, 'result')} in "
            f"{written.folder}, {show_bytes(written.size_bytes)}"
        ),
        header=m.blocks(
            f"without a page of their own, since they are older: {left}" if left else None,
            m.Words(f"open {Path(written.folder) / 'index.html'} in a browser"),
        ),
    )
