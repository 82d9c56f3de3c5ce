"""The plot of a series: results over dates or commits, levels, and what changed where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final

from ratchet.base.show.figures import Plot, PlotPoint, Scale, Series, Tick, points_plot, time_ticks
from ratchet.base.show.words import axis_of_unit, show_change
from ratchet.guard.history import AnalysedSeries, HistorySeries, Shift

MOST_POINTS: Final = 1500  # Limit of one series on a page; a longer one keeps its newest
LABELS: Final = 5
PER_LABEL: Final = 60  # Results for each label of a plot that is wider than the page
CROWDED: Final = 0.1
"""Smallest ratio of a usual distance between results to their mean one, for an axis of dates."""
Names = Mapping[tuple[str, int], str]
"""The incident of each regression, by its series and its index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultsAxis:
    """The place of each result, by the date of its commit or by the order of the commits.

    Dates are used unless one is not known, or most results came in a few bursts: those would be
    drawn on top of each other.
    """

    places: Sequence[float]
    first: int  # Index of the first result that is shown
    width: Scale
    ticks: tuple[Tick, ...]
    title: str

    def before(self, index: int) -> float:
        """Return the place between a result and the one before it; also one past the last."""
        at = index - self.first
        if at <= 0:
            return self.width.low
        if at >= len(self.places):
            return self.width.high
        return (self.places[at - 1] + self.places[at]) / 2

    def levels(self, one: AnalysedSeries) -> list[tuple[float, float, float]]:
        """Return the ends and the height of each level that is shown."""
        return [
            (self.before(start), self.before(end), level)
            for start, end, level in one.levels()
            if end > self.first
        ]


def axis_of(series: HistorySeries, first: int = 0) -> ResultsAxis:
    """Return the axis of a series from its result `first` on, of which there is one at least."""
    moments = [_moment(time) for time in series.times[first:]]
    known = [one for one in moments if one is not None]
    count = len(moments)
    dated = len(known) == count
    span = known[-1] - known[0] if known else 0.0
    steps = [b - a for a, b in itertools.pairwise(known)]
    if dated and span > 0 and median(steps) >= CROWDED * span / len(steps):
        room = span / (2 * count)
        width = Scale(low=known[0] - room, high=known[-1] + room)
        title = f"date of the commit (UTC), {_day(known[0])} to {_day(known[-1])}"
        return ResultsAxis(
            places=known,
            first=first,
            width=width,
            ticks=time_ticks(width, max(LABELS, count // PER_LABEL)),
            title=title,
        )
    width = Scale(low=-0.5, high=count - 0.5)
    labels = max(LABELS, count // PER_LABEL)
    labelled = dict.fromkeys(round(one * (count - 1) / (labels - 1)) for one in range(labels))
    names = {at: _label(series, first + at, known[at] if dated else None) for at in labelled}
    if len(set(names.values())) < len(names):  # one date for several results says nothing
        names = {at: _label(series, first + at, None) for at in labelled}
    ticks = tuple(Tick(percent=width.percent(at), label=label) for at, label in names.items())
    dates = f", {_day(known[0])} to {_day(known[-1])}" if dated else ""
    return ResultsAxis(
        places=range(count),
        first=first,
        width=width,
        ticks=ticks,
        title=f"commits in their order{dates}",
    )


def series_plot(one: AnalysedSeries, names: Names) -> Plot:
    """Plot the newest results of a series, of which there is one at least."""
    series = one.series
    axis = axis_of(series, max(0, len(series.values) - MOST_POINTS))
    title, show = axis_of_unit(series.metric_words[:80], series.unit)
    return points_plot(
        [_point(series, at, axis) for at in range(axis.first, len(series.values))],
        levels=axis.levels(one),
        marks=_marks(one, axis, names),
        x_title=axis.title,
        y_title=title,
        show=show,
        width=axis.width,
        x_ticks=axis.ticks,
    )


def whole_plot(plot: Plot) -> Plot:
    """Return a plot that is wider than a page, squeezed into its width."""
    *_, level, points = plot.series
    dense = Series(key="point", title="", path="".join(path for path, _ in points.titled))
    every = -(-len(plot.x_ticks) // LABELS)
    return replace(plot, series=(dense, level), x_ticks=plot.x_ticks[::every], count=0)


def _point(series: HistorySeries, at: int, axis: ResultsAxis) -> PlotPoint:
    value, low, high = (float(ends[at]) for ends in (series.values, series.lows, series.highs))
    known = math.isfinite(low) and math.isfinite(high)
    span = f" [{low:.6g}, {high:.6g}]" if known else ""
    said = (short_revision(series.revisions[at]), series.times[at], series.environments[at])
    return PlotPoint(
        at=axis.places[at - axis.first],
        value=value,
        title="\n".join([f"{value:.6g} {series.unit}{span}", *filter(None, said)]),
        low=low if known else None,
        high=high if known else None,
    )


def _marks(
    one: AnalysedSeries, axis: ResultsAxis, names: Names
) -> Iterator[tuple[float, str, str]]:
    """Yield where the level or the environment changed: place, look, and what a reader hovers."""
    for shift in one.shifts:
        if shift.index >= axis.first:
            incident = names.get((one.series.key, shift.index), "")
            said = f"{shift.kind} {shift_words(shift)}"
            said += f", incident {incident}" if incident else ""
            yield axis.before(shift.index), shift.kind, said
    known = {shift.index for shift in one.shifts}
    for at in one.new_environments:
        if at >= axis.first and at not in known:
            yield axis.before(at), "", "new environment, same level"


def shift_words(shift: Shift) -> str:
    """Format a change: +2.1%, or both levels where one is not above 0 and a share says nothing."""
    if shift.before > 0 and shift.after > 0:
        return show_change(shift.change)
    return f"{shift.before:.4g} to {shift.after:.4g}"


def short_revision(revision: str) -> str:
    """Return the first digits of a commit's hash; other names stay whole."""
    hash, plus, rest = revision.partition("+")
    digits = len(hash) == 40 and all(one in "0123456789abcdef" for one in hash)
    return (hash[:10] if digits else hash) + plus + rest


def _moment(time: str) -> float | None:
    """Return a time in Unix seconds; None if the ledger holds none, or none of our time."""
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    if not 1970 <= found.year < 2200:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _day(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def _label(series: HistorySeries, at: int, moment: float | None) -> str:
    if moment is not None:
        return f"{datetime.fromtimestamp(moment, UTC):%-d %b}"
    return short_revision(series.revisions[at])[:8] or series.times[at][:10]
