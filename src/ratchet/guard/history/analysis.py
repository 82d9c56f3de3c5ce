"""What changed in each series: regressions, improvements, and changes of the environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ratchet.guard.history.change_points import ChangePoint, change_points, step_at
from ratchet.guard.history.series import HistorySeries

ShiftKind = Literal["regression", "improvement", "environment"]

AT_LEAST = 0.001
"""Smaller changes of a level are none."""
FALSE_DISCOVERIES = 0.05
"""Share of the reported series that may be false (Benjamini and Hochberg)."""
_ENVIRONMENT_P = 0.001
_NEAR = 100
"""Points on each side of a new environment that say whether it moved the level."""


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
        """Return the relative change of the level: 0.02 is 2 % more."""
        return self.after / self.before - 1 if self.before else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalysedSeries:
    """A series with its shifts and its levels."""

    series: HistorySeries
    shifts: tuple[Shift, ...]
    new_environments: tuple[int, ...]
    """Indices at which the environment is another than before."""

    @property
    def regressed(self) -> bool:
        """Return whether its newest level that code set is a regression."""
        own = [one for one in self.shifts if one.kind != "environment"]
        return bool(own) and own[-1].kind == "regression"

    def at_least(self, change: float) -> AnalysedSeries:
        """Return the series with its larger shifts alone."""
        return replace(self, shifts=tuple(s for s in self.shifts if abs(s.change) >= change))

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
    best = np.asarray([_best_p(one) for one in found])
    order = np.sort(best)
    passing = order <= FALSE_DISCOVERIES * np.arange(1, len(best) + 1) / max(1, len(best))
    most = float(order[np.flatnonzero(passing)[-1]]) if passing.any() else -1.0
    return [
        one
        if p <= most
        else AnalysedSeries(
            series=one.series,
            shifts=tuple(s for s in one.shifts if s.kind == "environment"),
            new_environments=one.new_environments,
        )
        for one, p in zip(found, best, strict=True)
    ]


def analyse_one(series: HistorySeries, *, at_least: float = AT_LEAST) -> AnalysedSeries:
    """Find the shifts of one series.

    A new environment that moves the level is a shift of its own, and the stretches on its two sides
    are searched apart. One that does not is passed over.
    """
    names = series.environments
    fresh = [at for at in range(1, len(names)) if names[at] != names[at - 1]]
    walls = [at for at in fresh if _moved(series, at, fresh)]
    points: list[ChangePoint | int] = []
    for start, end in itertools.pairwise([0, *walls, len(names)]):
        if start:
            points.append(start)
        points += [_later(one, start) for one in change_points(series.values[start:end])]
    places = [0, *(p if isinstance(p, int) else p.index for p in points), len(names)]
    shifts = []
    for place, point in enumerate(points):
        before, at, after = places[place : place + 3]
        levels = (
            float(np.median(series.values[before:at])),
            float(np.median(series.values[at:after])),
        )
        shift = _shift(series, point, levels, fresh)
        if abs(shift.change) >= at_least:
            shifts.append(shift)
    return AnalysedSeries(series=series, shifts=tuple(shifts), new_environments=tuple(fresh))


def _moved(series: HistorySeries, at: int, fresh: Sequence[int]) -> bool:
    others = [0, *fresh, len(series.values)]
    place = others.index(at)
    start = max(others[place - 1], at - _NEAR)
    end = min(others[place + 1], at + _NEAR)
    return step_at(series.values[start:end], at - start) < _ENVIRONMENT_P


def _shift(
    series: HistorySeries,
    point: ChangePoint | int,
    levels: tuple[float, float],
    fresh: Sequence[int],
) -> Shift:
    before, after = levels
    if isinstance(point, int):
        at = first = last = point
        p, environment = 0.0, True
    else:
        at, first, last, p = point.index, point.first, point.last, point.p
        environment = any(first <= one <= last for one in fresh)
    worse = (after > before) == (series.better == "lower")
    kind: ShiftKind = "environment" if environment else "regression" if worse else "improvement"
    return Shift(kind=kind, index=at, first=first, last=last, p=p, before=before, after=after)


def _later(point: ChangePoint, start: int) -> ChangePoint:
    return ChangePoint(
        index=point.index + start,
        first=point.first + start,
        last=point.last + start,
        p=point.p,
        before=point.before,
        after=point.after,
    )


def _best_p(one: AnalysedSeries) -> float:
    return min((shift.p for shift in one.shifts if shift.kind != "environment"), default=1.0)
