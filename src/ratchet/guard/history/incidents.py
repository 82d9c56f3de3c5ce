"""Incidents: the regressions of one commit over all series, and what became of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import IncidentEvent, IncidentEventName, ObservationBook
from ratchet.base.ledger.connect import utc_now
from ratchet.guard.history import AnalysedSeries, Shift

IncidentState = Literal["open", "acknowledged", "resolved", "went away"]
_STATES: dict[IncidentEventName, IncidentState] = {
    "opened": "open",
    "reopened": "open",
    "acknowledged": "acknowledged",
    "resolved": "resolved",
    "went_away": "went away",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressedSeries:
    key: str
    shift: Shift
    among: tuple[str, ...]  # Its own commits, one of which brought the regression
    revision: str  # The likeliest of them
    back: bool  # The newest level is nearer to the one before the incident


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """Regressions that one commit explains."""

    id: str
    revision: str
    committed_at: str
    state: IncidentState
    series: tuple[RegressedSeries, ...]  # Empty for one that is no longer found
    note: str = ""

    @property
    def worst(self) -> float:
        return max((abs(one.shift.change) for one in self.series), default=0.0)

    def shown(self, least: float, only: re.Pattern[str]) -> bool:
        """Return whether it is as large, and one of its series is looked for.

        One that is no longer found has no size: it is shown.
        """
        if not self.series:
            return True
        return self.worst >= least and any(only.search(one.key) for one in self.series)


def incidents(analysed: Sequence[AnalysedSeries]) -> list[Incident]:
    """Group the regressions: each commit that explains some not yet explained is an incident.

    A regression's place is uncertain, so the commit that fits the most series comes first.
    """
    ranks = _ranks(analysed)
    times = {
        r: t for one in analysed for r, t in zip(_revisions(one), one.series.times, strict=True)
    }
    waiting = [found for one in analysed for found in _regressed(one)]
    result = []
    while waiting:
        fits = Counter(name for one in waiting for name in one.among)
        likeliest = Counter(one.revision for one in waiting)
        at = max(likeliest, key=lambda name: (fits[name], likeliest[name], -ranks[name]))
        own = [one for one in waiting if at in one.among]
        waiting = [one for one in waiting if at not in one.among]
        result.append(
            Incident(
                id=hashlib.sha256(f"{at} {own[0].key}".encode()).hexdigest()[:8],
                revision=at,
                committed_at=times[at],
                state="open",
                series=tuple(sorted(own, key=lambda one: -abs(one.shift.change))),
            )
        )
    return sorted(result, key=lambda one: ranks[one.revision])


def follow(book: ObservationBook, found: Sequence[Incident], keys: Iterable[str]) -> list[Incident]:
    """Bring the ledger's incidents up to date with what is found now; return all of these series.

    `keys` are the series that were looked at: an incident of others is left alone.
    """
    result, steps = followed(recorded(book.events()), found, keys)
    for incident, event in steps:
        _add(book, incident, event)
    return result


def followed(
    known: Sequence[Incident], found: Sequence[Incident], keys: Iterable[str]
) -> tuple[list[Incident], list[tuple[Incident, IncidentEventName]]]:
    """Return the incidents as `follow` does, and what it writes down of them."""
    looked, seen = set(keys), set()
    result: list[Incident] = []
    steps: list[tuple[Incident, IncidentEventName]] = []
    for incident in found:
        among = {one.key: one.among for one in incident.series}
        match = next(
            (
                old
                for old in known
                if old.id not in seen
                and any(old.revision in among.get(one.key, ()) for one in old.series)
            ),
            None,
        )
        current = (
            incident
            if match is None
            else replace(incident, id=match.id, state=match.state, note=match.note)
        )
        seen.add(current.id)
        gone = all(one.back for one in incident.series)
        if match is None:
            steps.append((current, "opened"))
        elif match.state == "went away" and not gone:
            steps.append((current, "reopened"))
            current = replace(current, state="open")
        if gone and current.state in ("open", "acknowledged"):
            steps.append((current, "went_away"))
            current = replace(current, state="went away")
        result.append(current)
    for old in known:
        if old.id in seen or not {one.key for one in old.series} <= looked:
            continue
        if old.state in ("open", "acknowledged"):
            steps.append((old, "went_away"))
            old = replace(old, state="went away")
        result.append(replace(old, series=()))
    return sorted(result, key=lambda one: (one.committed_at, one.revision)), steps


def recorded(events: Iterable[IncidentEvent]) -> list[Incident]:
    """Return the incidents of a ledger with their states; of their series only the names."""
    found: dict[str, Incident] = {}
    for event in events:
        old = found.get(event.incident)
        found[event.incident] = Incident(
            id=event.incident,
            revision=event.revision,
            committed_at="" if old is None else old.committed_at,
            state=_STATES[event.event],
            series=tuple(_named(key, event.revision) for key in event.series),
            note=event.note or ("" if old is None else old.note),
        )
    return list(found.values())


def mark(
    book: ObservationBook, id: str, event: Literal["acknowledged", "resolved"], note: str
) -> Incident:
    """Acknowledge or resolve an incident by the first digits of its id.

    Raises HistoryError: no incident, or more than one, has this id.
    """
    known = recorded(book.events())
    found = [one for one in known if id and one.id.startswith(id)]
    if len(found) != 1:
        many = "more than one incident" if found else "no incident"
        listed = ", ".join(one.id for one in (found or known)[-5:]) or "none"
        raise HistoryError(f"the ledger holds {many} {id!r}; it holds {listed}")
    marked = replace(found[0], note=note or found[0].note)
    _add(book, marked, event)
    return replace(marked, state=_STATES[event])


def _regressed(one: AnalysedSeries) -> list[RegressedSeries]:
    revisions = _revisions(one)
    now = one.level or 0.0  # A series with a shift has a level
    return [
        RegressedSeries(
            key=one.series.key,
            shift=shift,
            among=tuple(dict.fromkeys(revisions[shift.first : shift.last + 1])),
            revision=revisions[shift.index],
            back=abs(now - shift.before) < abs(now - shift.after),
        )
        for shift in one.shifts
        if shift.kind == "regression"
    ]


def _revisions(one: AnalysedSeries) -> list[str]:
    """Return a name for the commit of each value: its time where the commit is not known."""
    series = one.series
    return [r or t for r, t in zip(series.revisions, series.times, strict=True)]


def _ranks(analysed: Sequence[AnalysedSeries]) -> dict[str, int]:
    first: dict[str, tuple[str, int]] = {}
    for one in analysed:
        for index, (name, time) in enumerate(zip(_revisions(one), one.series.times, strict=True)):
            first[name] = min(first.get(name, (time, index)), (time, index))
    return {name: rank for rank, name in enumerate(sorted(first, key=lambda n: first[n]))}


def _named(key: str, revision: str) -> RegressedSeries:
    nothing = Shift(kind="regression", index=0, first=0, last=0, p=1.0, before=1.0, after=1.0)
    return RegressedSeries(key=key, shift=nothing, among=(revision,), revision=revision, back=False)


def _add(book: ObservationBook, incident: Incident, event: IncidentEventName) -> None:
    book.add_event(
        IncidentEvent(
            incident=incident.id,
            event=event,
            revision=incident.revision,
            at=utc_now(),
            series=tuple(one.key for one in incident.series),
            note=incident.note,
        )
    )
