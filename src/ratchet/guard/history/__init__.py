"""Results over commits: series, change points, incidents, import and export."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Better, Observation
from ratchet.base.measure import FloatArray
from ratchet.guard.history.csv_file import series_of
from ratchet.guard.history.segments import LEAST_SEGMENT, ChangePoint, change_points, step_at

# Series of results over commits, and what moved each: code, or its environment.


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySeries:
    """One metric of one benchmark on one machine, by the time of its commits."""

    key: str  # Its name in a ledger
    benchmark: str
    metric: str
    unit: str
    better: Better
    device: str
    values: FloatArray
    lows: FloatArray  # NaN where no interval is known
    highs: FloatArray
    revisions: tuple[str, ...]
    times: tuple[str, ...]
    environments: tuple[str, ...]
    left_out: int  # Values that are no finite number

    @property
    def metric_words(self) -> str:
        """Return the metric in words, without the unit that its values show; empty for `value`."""
        unit = {"s": "_s", "B": "_bytes"}.get(self.unit, "")
        words = self.metric.removesuffix(unit).replace("_", " ").strip()
        return "" if words == "value" else words or self.metric

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.benchmark, self.metric_words)))


def gather(
    observations: Iterable[Observation], fault: Callable[[str], None] | None = None
) -> list[HistorySeries]:
    """Group observations, which are in the order of their commits, into series by name.

    `fault` hears of each series that changes its unit or direction, which is left out. Raises
    HistoryError: there is such a series, and nobody to hear of it.
    """
    groups: dict[str, list[Observation]] = {}
    for one in observations:
        groups.setdefault(series_of(one), []).append(one)
    found = []
    for key, rows in sorted(groups.items()):
        try:
            found.append(_series(key, rows))
        except HistoryError as error:
            if fault is None:
                raise
            fault(str(error))
    return found


def compiled(only: str) -> re.Pattern[str]:
    """Return a user's regular expression; HistoryError if it is none."""
    try:
        return re.compile(only)
    except re.error as error:
        raise HistoryError(f"--only {only!r} is no regular expression: {error}") from error


def check_matched(only: str, matched: Sized, every: Sequence[str]) -> None:
    """Raise a HistoryError if a regular expression matches none of the series that there are."""
    if every and not matched:
        raise HistoryError(
            f"--only {only!r} matches none of {len(every)} series; the first is {every[0]!r}"
        )


def _series(key: str, rows: Sequence[Observation]) -> HistorySeries:
    last = rows[-1]
    for row in rows:
        if (row.unit, row.better) != (last.unit, last.better):
            raise HistoryError(
                f"{row.benchmark!r} {row.metric} is in {row.unit or 'no unit'} ({row.better} is "
                f"better) and in {last.unit or 'no unit'} ({last.better}): give one metric one unit"
            )
    kept = [row for row in rows if math.isfinite(row.value)]
    return HistorySeries(
        key=key,
        benchmark=last.benchmark,
        metric=last.metric,
        unit=last.unit,
        better=last.better,
        device=last.device,
        values=_array([row.value for row in kept]),
        lows=_array([row.low for row in kept]),
        highs=_array([row.high for row in kept]),
        revisions=tuple(row.revision for row in kept),
        times=tuple(row.committed_at for row in kept),
        environments=tuple(row.software for row in kept),
        left_out=len(rows) - len(kept),
    )


def _array(values: Sequence[float | None]) -> FloatArray:
    return np.asarray([math.nan if one is None else one for one in values], dtype=np.float64)


ShiftKind = Literal["regression", "improvement", "environment"]

AT_LEAST = 0.001  # Smaller changes of a level are none
FALSE_DISCOVERIES = 0.05  # Share of the reported series that may be false (Benjamini and Hochberg)
_ENVIRONMENT_P = 0.001
_NEAR = 100  # Points on each side of a new environment that say whether it moved the level


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """A change of a series' level, with its cause if that is known."""

    kind: ShiftKind
    index: int
    first: int
    last: int
    p: float
    before: float
    after: float

    @property
    def change(self) -> float:
        """Return the change over the size of the level before: 0.02 is 2 % more, also below 0."""
        return (self.after - self.before) / abs(self.before) if self.before else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalysedSeries:
    """A series with its shifts and its levels."""

    series: HistorySeries
    shifts: tuple[Shift, ...]
    new_environments: tuple[int, ...]  # Indices at which the environment is another than before

    @property
    def regressed(self) -> bool:
        """Return whether its newest level that code set is a regression."""
        own = [one for one in self.shifts if one.kind != "environment"]
        return bool(own) and own[-1].kind == "regression"

    def at_least(self, change: float) -> AnalysedSeries:
        """Return the series with its larger shifts alone."""
        return replace(self, shifts=tuple(s for s in self.shifts if abs(s.change) >= change))

    @property
    def level(self) -> float | None:
        """Return the newest level; None without a finite result."""
        return next((level for *_, level in reversed([*self.levels()])), None)

    def levels(self) -> Iterator[tuple[int, int, float]]:
        """Yield (start, end, median) of each stretch between shifts."""
        values = self.series.values
        ends = [0, *(one.index for one in self.shifts), len(values)]
        for start, end in itertools.pairwise(ends):
            if end > start:
                yield start, end, float(np.median(values[start:end]))


def analyse(every: Sequence[HistorySeries], *, at_least: float = AT_LEAST) -> list[AnalysedSeries]:
    """Find the shifts of all series; what may be chance among so many series is left out."""
    found = [analyse_one(one, at_least=at_least) for one in every]
    best = np.asarray(
        [
            min((shift.p for shift in one.shifts if shift.kind != "environment"), default=1.0)
            for one in found
        ]
    )
    order = np.sort(best)
    passing = order <= FALSE_DISCOVERIES * np.arange(1, len(best) + 1) / max(1, len(best))
    most = float(order[np.flatnonzero(passing)[-1]]) if passing.any() else -1.0
    return [
        one
        if p <= most
        else replace(one, shifts=tuple(s for s in one.shifts if s.kind == "environment"))
        for one, p in zip(found, best, strict=True)
    ]


def analyse_one(series: HistorySeries, *, at_least: float = AT_LEAST) -> AnalysedSeries:
    """Find the shifts of one series.

    A shift where the environment changed is the environment's. A new environment is a place known
    in advance, so it is also tested where the search found nothing.
    """
    names, values = series.environments, series.values
    fresh = [at for at in range(1, len(names)) if names[at] != names[at - 1]]
    points = change_points(values)
    for at in fresh:
        low = max((one.index for one in points if one.index < at), default=0)
        high = min((one.index for one in points if one.index > at), default=len(values))
        low, high = max(low, at - _NEAR), min(high, at + _NEAR)
        if any(_at(one, at) for one in points):
            continue
        if (p := step_at(values[low:high], at - low)) < _ENVIRONMENT_P:
            found = ChangePoint(index=at, first=at, last=at, p=p)
            points = sorted([*points, found], key=lambda one: one.index)
    ends = [0, *(one.index for one in points), len(values)]
    levels = [float(np.median(values[a:b])) for a, b in itertools.pairwise(ends)] if points else []
    shifts = [
        _shift(series, point, levels[place], levels[place + 1], fresh)
        for place, point in enumerate(points)
    ]
    kept = tuple(one for one in shifts if abs(one.change) >= at_least)
    return AnalysedSeries(series=series, shifts=kept, new_environments=tuple(fresh))


def _shift(
    series: HistorySeries, point: ChangePoint, before: float, after: float, fresh: Sequence[int]
) -> Shift:
    moved_with = [at for at in fresh if _at(point, at)]
    worse = (after > before) == (series.better == "lower")
    kind: ShiftKind = "environment" if moved_with else "regression" if worse else "improvement"
    return Shift(
        kind=kind,
        index=min(moved_with, key=lambda at: abs(at - point.index)) if moved_with else point.index,
        first=point.first,
        last=point.last,
        p=point.p,
        before=before,
        after=after,
    )


def _at(point: ChangePoint, place: int) -> bool:
    """Return whether a point may be at a place, with a little more doubt than it has itself.

    The range of 1 point in 60 misses the place; an upgrade must not become a regression by that.
    """
    return point.first - LEAST_SEGMENT <= place <= point.last + LEAST_SEGMENT
