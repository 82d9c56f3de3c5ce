"""Compute the page's figures and their axes as plain geometry, in percent of the figure's box.

CSS draws bars and intervals, and one SVG path draws each set of points or curves. A page therefore
needs no script and weighs tens of kilobytes. Every plot of a page is made here: `dots_plot` for
samples over rounds, `line_plot` for curves over steps, `points_plot` for results over commits,
with a title on each point, intervals, levels and vertical marks.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from ratchet.base.show.words import common_unit, show_time

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_STEPS = ((1.0, 2.0, 5.0), (1.0,))
_ONE_VALUE = 1e-9
"""Relative distance below which two ends are one value, because an axis cannot separate them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """One labelled value of an axis."""

    percent: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """An axis from `low` to `high`; if `log`, it is logarithmic and both ends are above 0."""

    low: float
    high: float
    log: bool = False

    def percent(self, value: float) -> float:
        """Return a value's position, 0 to 100; values outside move to the nearer end."""
        ends = (self._place(self.low), self._place(self.high))
        share = (self._place(value) - ends[0]) / (ends[1] - ends[0])
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def ticks(self, show: Callable[[float], str], count: int = 6) -> tuple[Tick, ...]:
        """Return about `count` round values inside the axis, with their labels."""
        values = self._log_values(count) if self.log else self._values(count)
        return tuple(Tick(percent=self.percent(value), label=show(value)) for value in values)

    def _place(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def _values(self, count: int) -> list[float]:
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * step for step in _STEPS if power * step >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_values(self, count: int) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in _LOG_STEPS:
            values = [step * 10.0**exponent for exponent in exponents for step in steps]
            inside = [value for value in values if self.low <= value <= self.high]
            if 2 <= len(inside) <= 2 * count:
                return inside
        # An axis that spans less than a decade has too few powers of ten to be readable.
        return self._values(count)


_HOUR, _DAY = 3600, 86_400
_SPANS = (60, 600, _HOUR, 6 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600)


def time_ticks(scale: Scale, count: int = 5) -> tuple[Tick, ...]:
    """Return at most about `count` round moments of an axis in Unix seconds, labelled in UTC."""
    rough = (scale.high - scale.low) / count
    step = next((one for one in _SPANS if one >= rough), 0)
    if step:
        # Weeks begin on a Monday, and the first day of Unix time is a Thursday.
        origin = 4 * _DAY if step >= 7 * _DAY else 0
        first, last = (math.floor((end - origin) / step) for end in (scale.low, scale.high))
        moments = [origin + index * step for index in range(first + 1, last + 1)]
        form = "%H:%M" if step < _DAY else "%-d %b"
    else:
        months = next((one for one in _MONTHS if one * 30 * _DAY >= rough), _MONTHS[-1])
        low, high = (datetime.fromtimestamp(end, UTC) for end in (scale.low, scale.high))
        places = range(low.year * 12 + low.month, high.year * 12 + high.month)
        moments = [
            int(datetime(at // 12, at % 12 + 1, 1, tzinfo=UTC).timestamp())
            for at in places
            if at % months == 0
        ]
        form = "%b %Y" if months < 12 else "%Y"

    def label(moment: int) -> str:
        midnight = moment % _DAY == 0
        return f"{datetime.fromtimestamp(moment, UTC):{'%-d %b' if midnight and step else form}}"

    return tuple(Tick(percent=scale.percent(one), label=label(one)) for one in moments)


def from_zero(values: Iterable[float]) -> Scale:
    """Return an axis for bars: from zero to the largest finite value."""
    return Scale(low=0.0, high=max(_finite(values), default=0.0) or 1.0)


def around(values: Iterable[float], *, log: bool = False, margin: float = 0.06) -> Scale:
    """Return an axis around all finite values (above 0 if `log`), with room at both ends."""
    kept = [value for value in _finite(values) if value > 0 or not log]
    low, high = min(kept, default=0.5), max(kept, default=2.0)
    if math.isclose(low, high, rel_tol=_ONE_VALUE):
        low, high = (low / 1.1, high * 1.1) if log else (low - 0.5, high + 0.5)
    if log:
        room = (high / low) ** margin
        return Scale(low=low / room, high=high * room, log=True)
    room = (high - low) * margin
    return Scale(low=low - room, high=high + room)


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


_PERCENT_PER_LETTER = 1.25
"""Share of a bar that one letter of a part's label takes, at the page's full width."""


class ShownSample(Protocol):
    """A timed sample of an arm, of a step or of a kernel."""

    @property
    def arm(self) -> str: ...
    @property
    def launch(self) -> int: ...
    @property
    def round(self) -> int: ...
    @property
    def wall_time_s(self) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A bar, a whisker, a dot or a label in a track, in percent of its width."""

    left: float
    width: float | None = None
    look: str = ""
    text: str = ""
    title: str = ""
    tag: Literal["i", "b", "span"] = "i"  # The element: a bar or band, a line or dot, a label


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackRow:
    title: str
    value: str = ""
    marks: tuple[Mark, ...]
    look: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Points or curves of one colour: an SVG path in a box of 100 by 100."""

    key: str
    title: str  # Its name in the legend; a series without one is not in it
    path: str
    note: str = ""
    width: float = 0.0  # Width of the stroke in pixels, if it is its own
    titled: tuple[tuple[str, str], ...] = ()
    """Paths that are drawn one by one, each with a title that shows on hover."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A box with two axes and the series drawn in it."""

    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_title: str
    y_title: str
    marks: tuple[Mark, ...] = ()
    """Vertical lines: `left`, and a `look` and a `title` if they have one."""
    count: int = 0
    """The number of points, if each needs room: a plot of many is wider than the page."""


def stacked_bar(
    title: str, total: str, parts: Iterable[tuple[str, str, float, str, str]], scale: Scale
) -> TrackRow:
    """Draw (colour, title, value, time and share in words) of each part side by side."""
    drawn, left = [], 0.0
    for colour, name, value, time, share in parts:
        width = scale.percent(value)
        named = width >= _PERCENT_PER_LETTER * len(f"{name} {share}")
        drawn.append(
            Mark(
                look=colour,
                left=round(left, 3),
                width=width,
                text=f"{name} {share}" if named else "",
                title=f"{name}: {time}, {share}",
            )
        )
        left += width
    return TrackRow(title=title, value=total, marks=tuple(drawn))


def whisker(scale: Scale, low: float, high: float) -> Mark:
    return between(scale, low, high, look="whisker", tag="b")


def between(scale: Scale, low: float, high: float, **more: Any) -> Mark:
    left = scale.percent(low)
    return Mark(left=left, width=round(scale.percent(high) - left, 3), **more)


def dots_plot(
    samples: Sequence[ShownSample], styles: Mapping[str, tuple[str, str]], *, what: str
) -> Plot | None:
    """Plot samples of the arms in `styles` over their rounds; None if there are none.

    `what` names the timed thing. `styles` has the colour and the title of each arm.
    """
    if not samples:
        return None
    rounds = sorted({(sample.launch, sample.round) for sample in samples})
    places = {key: index for index, key in enumerate(rounds)}
    launches: dict[int, list[int]] = defaultdict(list)
    for (launch, _), place in places.items():
        launches[launch].append(place)
    times = [sample.wall_time_s for sample in samples]
    unit = common_unit(times)
    scale = around(times, log=True)
    width = Scale(low=-0.5, high=max(places.values()) + 0.5)
    series = []
    for arm, (key, title) in styles.items():
        own = [sample for sample in samples if sample.arm == arm]
        if not own:
            continue
        points = (
            (width.percent(places[one.launch, one.round]), 100 - scale.percent(one.wall_time_s))
            for one in own
        )
        median_s = statistics.median(sample.wall_time_s for sample in own)
        note = f"median {show_time(median_s)}, {len(own)} samples"
        series.append(Series(key=key, title=title, path=dots(points), note=note))
    return Plot(
        series=tuple(series),
        x_ticks=tuple(
            Tick(percent=width.percent(statistics.fmean(at)), label=f"launch {launch + 1}")
            for launch, at in launches.items()
        ),
        y_ticks=scale.ticks(unit.show),
        x_title="rounds of each launch",
        y_title=f"{what}, {unit.name}",
        marks=tuple(Mark(left=width.percent(at[0] - 0.5)) for at in [*launches.values()][1:]),
    )


def pairs_plot(
    sides: Mapping[str, tuple[str, Sequence[float]]], *, y_title: str, show: Callable[[float], str]
) -> Plot:
    """Plot the values of two sides over their pairs, of which there is one; by colour and title."""
    scale = around(value for _, values in sides.values() for value in values)
    count = max(len(values) for _, values in sides.values())
    width = Scale(low=0.5, high=count + 0.5)
    return Plot(
        series=tuple(
            Series(
                key=key,
                title=title,
                path=dots(
                    (width.percent(at), 100 - scale.percent(value))
                    for at, value in enumerate(values, 1)
                ),
                note=f"median {show(statistics.median(values))}, {len(values)} runs",
            )
            for key, (title, values) in sides.items()
            if values
        ),
        x_ticks=tuple(
            one
            for one in width.ticks(lambda at: f"{at:.0f}", min(6, count))
            if "." not in one.label
        ),
        y_ticks=scale.ticks(show, count=5),
        x_title="pair",
        y_title=y_title,
    )


def dots(points: Iterable[tuple[float, float]]) -> str:
    # A zero-length line with round ends is a dot that keeps its shape when the box is stretched.
    return "".join(f"M{x:.2f} {y:.2f}h.01" for x, y in points)


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Lines of one colour, each as points over the steps."""

    key: str
    title: str
    note: str
    lines: Sequence[Sequence[tuple[float, float]]]


def line_plot(curves: Sequence[PlotCurve], *, y_title: str, digits: int) -> Plot:
    """Plot figures over steps; their axis shows so many digits."""
    points = [point for one in curves for line in one.lines for point in line]
    scale = around([value for _, value in points])
    width = Scale(low=0.0, high=max(at for at, _ in points) or 1.0)
    return Plot(
        series=tuple(
            Series(
                key=one.key,
                title=one.title,
                path="".join(line_path(line, width, scale) for line in one.lines),
                note=one.note,
            )
            for one in curves
        ),
        x_ticks=width.ticks(lambda step: f"{step:.0f}", count=min(5, round(width.high) + 1)),
        y_ticks=scale.ticks(lambda value: f"{value:.{digits}g}", count=5),
        x_title="step",
        y_title=y_title,
    )


def line_path(points: Iterable[tuple[float, float]], width: Scale, scale: Scale) -> str:
    """Return a curve as a path; a value that is not finite breaks it."""
    path, pen = "", "M"
    for at, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        path += f"{pen}{width.percent(at):.2f} {100 - scale.percent(value):.2f}"
        pen = "L"
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotPoint:
    """A result: its place on the axis, its value with an interval, and what a reader hovers for."""

    at: float
    value: float
    title: str = ""
    low: float | None = None
    high: float | None = None


def points_plot(
    points: Sequence[PlotPoint],
    *,
    levels: Sequence[tuple[float, float, float]] = (),
    marks: Iterable[tuple[float, str, str]] = (),
    x_title: str,
    y_title: str,
    show: Callable[[float], str],
    width: Scale | None = None,
    x_ticks: Sequence[Tick] | None = None,
) -> Plot:
    """Plot at least one result with its interval, by index or on an axis of one's own.

    `levels` are horizontal lines (from, to, value), `marks` vertical ones (place, look, title).
    """
    ends = [(one.low, one.high) for one in points if one.low is not None and one.high is not None]
    scale = around(
        [*(one.value for one in points), *itertools.chain(*ends), *(y for *_, y in levels)]
    )
    places = [one.at for one in points]
    width = width or Scale(low=min(places) - 0.5, high=max(places) + 0.5)

    def place(at: float, value: float) -> str:
        return f"{width.percent(at):.2f} {100 - scale.percent(value):.2f}"

    intervals = (
        f"M{place(one.at, one.low)}L{place(one.at, one.high)}"
        for one in points
        if one.low is not None and one.high is not None
    )
    kept = [one for one in points if math.isfinite(one.value)]
    if x_ticks is None:
        indices = width.ticks(lambda at: f"{at:.0f}" if at == round(at) else "")
        x_ticks = [one for one in indices if one.label]
    return Plot(
        series=(
            Series(key="interval", title="", path="".join(intervals)),
            Series(
                key="level",
                title="",
                path="".join(f"M{place(a, y)}L{place(b, y)}" for a, b, y in levels),
            ),
            Series(
                key="point",
                title="",
                path="",
                titled=tuple((f"M{place(one.at, one.value)}h.01", one.title) for one in kept),
            ),
        ),
        x_ticks=tuple(x_ticks),
        y_ticks=scale.ticks(show, count=5),
        x_title=x_title,
        y_title=y_title,
        marks=tuple(
            Mark(left=width.percent(at), look=look, title=title) for at, look, title in marks
        ),
        count=len(kept),
    )
