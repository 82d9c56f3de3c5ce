"""The figures of a trace's page as geometry, in percent of a figure's box."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.base.show.figures import (
    Mark,
    Plot,
    Scale,
    Series,
    Tick,
    TrackRow,
    around,
    dots,
    from_zero,
    stacked_bar,
)
from ratchet.base.show.words import (
    change_ms,
    common_unit,
    milliseconds,
    share_of,
    show_bandwidth,
    show_bytes,
    show_flops,
    show_ns,
)
from ratchet.trace.show import words
from ratchet.trace.show.names import short_shapes

if TYPE_CHECKING:
    from ratchet.trace.answers.critical_path import PathWindow
    from ratchet.trace.answers.report import Report
    from ratchet.trace.answers.roofline import RooflineRow
    from ratchet.trace.answers.timeline import Timeline

Times = Mapping[str, int]
COLOURS = {
    "communication": "exposed_communication", "copy": "exposed_copy", "cpu": "fourth",
    "between_ops": "fifth", "kernel_gap": "idle", "launch_delay": "idle", "sync": "idle",
    "unknown": "idle",
}  # fmt: skip
"""Colours of sorts of work and kinds of the critical path; others have their own name."""
_SEEN = 0.0005  # Share of the window below which a stream is not drawn, unless it is the busiest
_LANE_PERCENT_PER_LETTER = 0.85
_SERIES = ("compute", "exposed_communication", "exposed_copy", "fourth", "fifth", "idle")
"""Colours for ranks and types, in order; the last is for all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneRow:
    """A value over the window as an area, 100 high."""

    label: str
    key: str
    path: str
    value: str
    first_of_rank: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Lanes on one time axis, with the borders of the first rank's steps."""

    rows: tuple[LaneRow, ...]
    ticks: tuple[Tick, ...]
    unit: str
    steps: tuple[Tick, ...] = ()
    aligned: bool = True
    """True if the ranks share one clock. If not, each begins at its own window."""


def window_bar(
    title: str, names: Mapping[str, str], times: Times, window: int, scale: Scale | None = None
) -> TrackRow:
    """Draw a window as a bar of its parts: full width, or on the scale of several."""
    parts = (
        (
            COLOURS.get(key, key),
            said,
            times[key],
            f"{milliseconds(times[key])} ms",
            share_of(times[key], window),
        )
        for key, said in names.items()
        if times[key]
    )
    return stacked_bar(title, show_ns(window), parts, scale or from_zero([window]))


def _bars(names: Mapping[str, str], windows: Sequence[tuple[str, Times, int]]) -> list[TrackRow]:
    """Draw several windows, all on the scale of the longest."""
    scale = from_zero([window for _, _, window in windows])
    return [window_bar(title, names, times, window, scale) for title, times, window in windows]


def step_bars(found: Report) -> list[TrackRow]:
    return _bars(words.PARTS, [(step.label, step.times, step.window) for step in found.steps])


def rank_bars(ranks: Sequence[Report]) -> list[TrackRow]:
    windows = [(f"rank {one.rank}", one.identity.times, one.identity.window) for one in ranks]
    return _bars(words.PARTS, windows)


def path_bars(ranks: Sequence[Report], most: int) -> list[TrackRow]:
    """Draw the critical path of the window and of its steps; of several ranks, of each window."""

    def bars(titles: Sequence[str], windows: Sequence[PathWindow]) -> list[TrackRow]:
        times = [{kind: getattr(one, kind) for kind in words.PATH} for one in windows]
        lengths = [one.window for one in windows]
        return _bars(words.PATH, list(zip(titles, times, lengths, strict=True)))

    if len(ranks) > 1:
        return bars([f"rank {one.rank}" for one in ranks], [r.critical_path.whole for r in ranks])
    path = ranks[0].critical_path
    steps = path.steps[:most] if len(path.steps) > 1 else ()
    return bars(["whole window"], [path.whole]) + bars([step.label for step in steps], steps)


def path_times(ranks: Sequence[Report]) -> dict[str, int]:
    """Return the time of each kind of the critical path, summed over ranks."""
    whole = [one.critical_path.whole for one in ranks]
    return {kind: sum(getattr(window, kind) for window in whole) for kind in words.PATH}


def lanes(ranks: Sequence[Report]) -> Lanes | None:
    """Draw the streams of one rank, or the sorts of work of each of several."""
    timelines = [one.timeline for one in ranks]
    starts = [line.start for line in timelines]
    ends = [line.end for line in timelines]
    aligned = len(ranks) == 1 or max(starts) < min(ends)
    spans = [end - start for start, end in zip(starts, ends, strict=True)]
    origin = min(starts)
    length = max(ends) - origin if aligned else max(spans)
    if length <= 0:
        return None
    rows = []
    for one, line in zip(ranks, timelines, strict=True):
        offset = line.start - origin if aligned else 0
        chosen = line.together
        if len(ranks) == 1:
            least = _SEEN * (line.end - line.start)
            chosen = tuple(
                lane for i, lane in enumerate(line.lanes) if not i or lane.total >= least
            )
        for index, lane in enumerate(chosen):
            share = share_of(lane.total, line.end - line.start)
            rows.append(
                LaneRow(
                    label=lane.name if len(ranks) == 1 else f"rank {one.rank}",
                    key=COLOURS.get(lane.sort, lane.sort),
                    path=_area(_busy(lane.busy, line), line, offset, length),
                    value=f"{lane.sort} {share}",
                    first_of_rank=index == 0 and len(ranks) > 1,
                )
            )
    if not rows:
        return None
    scale = Scale(low=0.0, high=length * 1e-9)
    borders = [
        Tick(percent=scale.percent((step.start - origin) * 1e-9), label=step.label)
        for step in ranks[0].steps
    ]
    return _on_axis(length, rows, _apart(borders) if aligned else (), aligned)


def _apart(borders: Sequence[Tick]) -> tuple[Tick, ...]:
    """Drop the labels that would run into the next one."""
    kept, free = [], -1.0
    for border in borders:
        fits = border.percent >= free
        kept.append(Tick(percent=border.percent, label=border.label if fits else ""))
        if fits:
            free = border.percent + _LANE_PERCENT_PER_LETTER * (len(border.label) + 1)
    return tuple(kept)


def _busy(times: Sequence[int], line: Timeline) -> list[float]:
    """Return each bin's busy share in percent; a bin that holds anything can be seen."""
    width = (line.end - line.start) / line.bins
    return [max(100 * min(time / width, 1), 4.0) if time and width else 0.0 for time in times]


def _scaled(values: Sequence[float]) -> list[float]:
    """Return values in percent of the highest; what is above 0 can be seen."""
    highest = max(values, default=0)
    return [max(100 * value / highest, 2.0) if value > 0 else 0.0 for value in values]


def _area(heights: Sequence[float], line: Timeline, offset: int = 0, length: int = 0) -> str:
    """Draw bins as columns; the window begins at `offset` ns of an axis of `length` ns."""
    bins, span = len(heights), line.end - line.start
    at = [100 * (offset + index * span / bins) / (length or span) for index in range(bins + 1)]
    path, height = "", 0.0
    for x, tall in zip(at, (*(round(tall, 1) for tall in heights), 0.0), strict=True):
        if tall != height:
            path += f"H{x:.2f}V{100 - tall:g}" if path else f"M{x:.2f} 100V{100 - tall:g}"
            height = tall
    return f"{path}Z" if path else ""


def series_lanes(one: Report) -> Lanes | None:
    """Draw queue lengths and copy rates of one rank, each on its own scale; None without any."""
    line = one.timeline
    length = line.end - line.start
    rows = [
        LaneRow(
            label=f"queue of stream {row.stream}",
            key="fourth",
            path=_area(_scaled(row.peak), line),
            value=f"up to {row.longest:,} waiting",
        )
        for row in one.queues
        if row.longest > 1 and length > 0
    ]
    rows += [
        LaneRow(
            label=row.name,
            key="exposed_copy",
            path=_area(_scaled(row.bytes_per_s), line),
            value=f"up to {show_bandwidth(row.busiest)}",
        )
        for row in one.bandwidth
        if row.busiest >= 1e6 and length > 0
    ]
    return _on_axis(length, rows) if rows else None


def _on_axis(
    length: int, rows: Sequence[LaneRow], steps: tuple[Tick, ...] = (), aligned: bool = True
) -> Lanes:
    unit = common_unit([length * 1e-9])
    ticks = Scale(low=0.0, high=length * 1e-9).ticks(unit.show)
    return Lanes(rows=tuple(rows), ticks=ticks, unit=unit.name, steps=steps, aligned=aligned)


def memory_plot(ranks: Sequence[Report]) -> Plot | None:
    """Draw each rank's allocated memory over time; None if none was recorded."""
    used = {one.rank: one.memory for one in ranks if one.memory and len(one.memory.timeline) > 1}
    if not used:
        return None
    lines = {rank: one.timeline for rank, one in used.items()}
    length = max(line[-1][0] - line[0][0] for line in lines.values()) or 1
    tall = from_zero([float(size) for line in lines.values() for _, size in line])
    width = Scale(low=0.0, high=length * 1e-9)
    unit = common_unit([length * 1e-9])
    power = max((p for p in (0, 1, 2, 3, 4) if tall.high >= 1024**p), default=0)
    name = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    sizes = Scale(low=0.0, high=tall.high / 1024**power)
    return Plot(
        series=tuple(
            Series(
                key=_SERIES[min(index, len(_SERIES) - 1)],
                title=f"rank {rank}" if len(used) > 1 else "allocated",
                path=_steps(one.timeline, width, tall),
                note=f"peak {show_bytes(one.peak_bytes)}",
            )
            for index, (rank, one) in enumerate(used.items())
        ),
        x_ticks=width.ticks(unit.show),
        y_ticks=sizes.ticks(lambda value: f"{value:g}", count=5),
        x_title=f"{unit.name} of the recording",
        y_title=f"allocated, {name}",
    )


def _steps(line: Sequence[Sequence[int]], width: Scale, tall: Scale) -> str:
    """Draw allocated bytes as a step function."""
    start = line[0][0]
    points = [
        (width.percent((time - start) * 1e-9), 100 - tall.percent(float(size)))
        for time, size in line
    ]
    path = f"M{points[0][0]:.2f} {points[0][1]:.2f}"
    return path + "".join(f"H{x:.2f}V{y:.2f}" for x, y in points[1:])


_DOTS = 200  # Ops in the figure, the longest
_SLOWEST = 1e9  # FLOP/s; what is slower would press all else into a corner


def roofline_plot(ranks: Sequence[Report]) -> Plot | None:
    """Draw the first rank's ops whose FLOPs are known, under the ceilings of their types."""
    rows = [row for row in ranks[0].roofline if row.flops_per_s > 0 and row.intensity > 0]
    rows = [row for row in rows if row.flops_per_s >= _SLOWEST] or rows
    rows = sorted(rows, key=lambda row: -row.time)[:_DOTS]
    if not rows:
        return None
    kinds = list(dict.fromkeys(row.dtype for row in rows))
    colours = {kind: _SERIES[min(i, len(_SERIES) - 1)] for i, kind in enumerate(kinds)}
    # Small calls are held against the caches' bandwidth; the line is the memory's, the lowest.
    by_speed = sorted(rows, key=lambda row: -row.roof_bytes_per_s)
    roofs = {row.dtype: row for row in by_speed if row.roof_flops_per_s}
    ridges = [row.roof_flops_per_s / row.roof_bytes_per_s for row in roofs.values()]
    x = around([*(row.intensity for row in rows), *ridges], log=True, margin=0.1)
    peaks = [row.roof_flops_per_s for row in roofs.values()]
    y = around([*(row.flops_per_s for row in rows), *peaks], log=True)
    longest = max(row.time for row in rows)
    points = (
        Series(
            key=colours[row.dtype],
            title="",
            path=dots([(x.percent(row.intensity), 100 - y.percent(row.flops_per_s))]),
            width=round(6 + 14 * (row.time / longest) ** 0.5, 1),
            note=f"{row.name} {short_shapes(row.shapes)} {row.dtype}: "
            f"{milliseconds(row.time)} ms, {show_flops(row.flops_per_s)}, "
            f"{row.intensity:,.1f} FLOP a byte, {row.bound} bound",
        )
        for row in rows
    )
    return Plot(
        series=(*(_roof(kind, colours[kind], roofs.get(kind), x, y) for kind in kinds), *points),
        x_ticks=x.ticks(lambda value: f"{value:g}"),
        y_ticks=y.ticks(show_flops),
        x_title="FLOP a byte",
        y_title="rate",
    )


def _roof(kind: str, key: str, row: RooflineRow | None, x: Scale, y: Scale) -> Series:
    """Draw the ceiling of a type: bandwidth up to the ridge, then compute."""
    if row is None:
        return Series(key=f"roof {key}", title=kind, path="", note="no ceiling known")
    flops, bandwidth = row.roof_flops_per_s, row.roof_bytes_per_s
    # The sloped part enters the box at its left edge or at its bottom.
    enter = max(x.low, y.low / bandwidth)
    corners = [(enter, enter * bandwidth), (flops / bandwidth, flops), (x.high, flops)]
    path = "L".join(f"{x.percent(i):.2f} {100 - y.percent(rate):.2f}" for i, rate in corners)
    note = f"{show_flops(flops)}, {bandwidth / 1e9:,.0f} GB/s"
    return Series(key=f"roof {key}", title=kind, path=f"M{path}", note=note)


def change_bars(parts: Iterable[tuple[str, str, int]]) -> list[TrackRow]:
    """Draw parts of a change as bars from a common zero, to its right if they cost time."""
    found = list(parts)
    ends = [0, *(time for _, _, time in found)]
    scale = Scale(low=float(min(ends)), high=float(max(ends)) or (1.0 if not min(ends) else 0.0))
    zero = scale.percent(0.0)
    rows = []
    for key, title, time in found:
        at = scale.percent(float(time))
        bar = Mark(left=min(zero, at), width=round(abs(at - zero), 3))
        rows.append(TrackRow(title=title, value=f"{change_ms(time)} ms", marks=(bar,), look=key))
    return rows
