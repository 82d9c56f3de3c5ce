"""Everything that the pages of a site share: series with their changes, incidents, rows, links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ratchet.base.ledger import Ledger, schema
from ratchet.base.ledger.books import IncidentEvent, ObservationBook
from ratchet.base.ledger.schema import Payload
from ratchet.base.show import model as m
from ratchet.base.show.words import device_words, show_value
from ratchet.guard.history import AnalysedSeries, analyse, gather
from ratchet.guard.history.incidents import Incident, followed, incidents, recorded
from ratchet.guard.history.plot import shift_words
from ratchet.guard.history.show import names_of, tone_of, urgency
from ratchet.guard.site.book import MOST_PAGES, CountedRows, Judged, Named, SiteBook
from ratchet.guard.site.links import SiteLinks, clipped

SHOWN: Final = 0.01  # Smaller changes of a level are on no page, as `history show` has it
MOST_SERIES: Final = 2000  # Series with a page, the changed ones first


@dataclass(kw_only=True)
class SiteFacts:
    """The findings of one reading of a ledger."""

    book: SiteBook
    links: SiteLinks
    series: Sequence[AnalysedSeries]  # The regressed first
    every_series: int
    results: int
    incidents: Sequence[Incident]  # The newest first
    events: Sequence[IncidentEvent]
    faults: Sequence[str]  # Why series are left out
    runs: CountedRows
    recipes: CountedRows
    verdicts: CountedRows
    kernels: Sequence[Named]
    every_kernel: int
    problems: Mapping[str, Named]
    devices: Mapping[str, Payload]
    software: Mapping[str, Payload]
    proposals: Mapping[str, set[str]]

    def things(self) -> Iterator[tuple[str, str, Any]]:
        """Yield everything that has a page: its kind, its key, and the thing."""
        yield from (("series", one.series.key, one) for one in self.series)
        yield from (("incident", one.id, one) for one in self.incidents[:MOST_PAGES])
        yield from (("run", one.key, one) for one in self.runs.rows)
        yield from (("recipe", f"recipe {one.id}", one) for one in self.recipes.rows)
        yield from (("kernel", one.hash, one) for one in self.kernels)
        yield from (("verdict", f"verdict {one.id}", one) for one in self.verdicts.rows)
        yield from (("device", one, one) for one in self.machines[:MOST_PAGES])

    @cached_property
    def names(self) -> Mapping[tuple[str, int], str]:
        return names_of(self.incidents)

    @cached_property
    def by_key(self) -> Mapping[str, AnalysedSeries]:
        return {one.series.key: one for one in self.series}

    @cached_property
    def by_kernel(self) -> Mapping[str, Sequence[Judged]]:
        """The verdicts on each kernel, the newest first."""
        found = defaultdict(list)
        for one in self.verdicts.rows:
            found[one.kernel].append(one)
        return found

    @cached_property
    def named_kernels(self) -> Mapping[str, Named]:
        return {one.hash: one for one in self.kernels}

    @cached_property
    def machines(self) -> Sequence[str]:
        """The devices that something was measured on, those with the newest results first."""
        newest: dict[str, str] = {}
        for one in self.series:
            at = one.series.times[-1] if one.series.times else ""
            newest[one.series.device] = max(newest.get(one.series.device, ""), at)
        for row in (*self.runs.rows, *self.verdicts.rows, *self.recipes.rows):
            newest[row.device] = max(newest.get(row.device, ""), row.at)
        return sorted(newest, key=lambda one: newest[one], reverse=True)

    def device_name(self, device: str) -> str:
        """Return a device's model, or the name that an imported file gives."""
        known = self.devices.get(device)
        if not known:
            return device or "unknown"
        try:
            return device_words(known)
        except (TypeError, ValueError):  # of a damaged row
            return device

    def device(self, device: str) -> m.Span:
        return self.links.to("device", device, self.device_name(device))

    def series_link(self, key: str) -> m.Span:
        one = self.by_key.get(key)
        if one is None:
            return clipped(key)
        own = one.series
        return self.links.to("series", key, f"{own.title} on {self.device_name(own.device)}")

    def kernel(self, hash: str) -> m.Span:
        known = self.named_kernels.get(hash)
        return self.links.to("kernel", hash, f"{known.name if known else ''} {hash[:12]}".strip())

    def problem_name(self, hash: str) -> str:
        known = self.problems.get(hash)
        return known.name if known else hash[:12]

    def chip(self, one: AnalysedSeries, text: str = "") -> m.Span:
        """Return a series' level now in the colour of its last decided change."""
        last = one.shifts[-1] if one.shifts else None
        level = show_value(one.level, one.series.unit)
        change = f" {shift_words(last)}" if last else ""
        said = f"{text} " if text else ""
        return m.Span(
            f"{said}{level}{change}"[:MOST_CHIP],
            f"chip {tone_of(one)}",
            f"{last.kind if last else 'no change'}: {one.series.key}"[:600],
            self.links.href("series", one.series.key),
        )


MOST_CHIP: Final = 80


def read_facts(ledger: Ledger, commit_url: str) -> SiteFacts:
    """Read a ledger for its pages, and give each page its name.

    Raises LedgerError: the ledger fails.
    """
    book, faults = SiteBook(ledger), list[str]()
    observations = ObservationBook(ledger).observations()
    every = analyse(gather(observations, faults.append))
    events = ObservationBook(ledger).events()
    found, _ = followed(recorded(events), incidents(every), [one.series.key for one in every])
    shown = [one for one in found if not one.series or one.worst >= SHOWN]
    series = sorted((one.at_least(SHOWN) for one in every), key=urgency)
    verdicts, kernels = book.verdicts(), book.named(schema.kernels)
    recipes, runs = book.recipes(), book.runs()
    judged = {one.kernel for one in verdicts}
    installed = {hash for one in recipes.rows for hash in one.kernels}
    # Those that a verdict or a recipe is about come first: a long run proposes thousands.
    ordered = sorted(
        kernels.values(), key=lambda k: (k.hash in installed, k.hash in judged, k.id), reverse=True
    )
    facts = SiteFacts(
        book=book,
        links=SiteLinks(commit_url=commit_url),
        series=series[:MOST_SERIES],
        every_series=len(series),
        results=len(observations),
        incidents=list(reversed(shown)),
        events=events,
        faults=faults,
        runs=runs,
        recipes=recipes,
        verdicts=CountedRows(rows=verdicts[:MOST_PAGES], every=len(verdicts)),
        kernels=ordered[:MOST_PAGES],
        every_kernel=len(ordered),
        problems=book.named(schema.problems),
        devices=book.described(schema.devices, "device"),
        software=book.described(schema.software, "software"),
        proposals=book.proposals(),
    )
    for kind, key, _ in facts.things():
        facts.links.add(kind, key)
    return facts


def left_out(what: str, shown: int, every: int, rest: str = "") -> m.Words | None:
    """Say what a list leaves out, if it does."""
    if shown >= every:
        return None
    return m.note(f"{shown:,} of {every:,} {what} are shown{rest}.")


def fault_words(facts: SiteFacts) -> m.ReportSection | None:
    """Name the series that the ledger holds and that cannot be drawn."""
    if not facts.faults:
        return None
    lines = [m.Words(clipped(one)) for one in facts.faults[:10]]
    more = left_out("series that cannot be drawn", len(lines), len(facts.faults))
    return m.section("Left out", *lines, more)
