"""The critical path, the queues and the copy rates of a trace as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.report import trace_words as words
from ratchet.report.scale import Scale, Tick, from_zero
from ratchet.report.words import common_unit

Document = Mapping[str, Any]
PATH = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "kernel_gap": "kernel gap",
    "launch_delay": "launch delay",
    "cpu": "CPU ops",
    "between_ops": "between ops",
    "sync": "synchronisation",
    "unknown": "unknown",
}
"""The kinds of a critical path, as they are drawn."""
PATH_MEANS = {
    "compute": "kernels that do not communicate",
    "communication": "communication kernels",
    "copy": "copies and fills",
    "kernel_gap": "between two pieces of work that were launched in time",
    "launch_delay": "from the call to the work, where the stream had nothing left to do",
    "cpu": "a thread was in an op or a runtime call",
    "between_ops": "a thread was outside of any: Python, or one thread waited for another",
    "sync": "from the end of device work to the return of the call that waited for it",
    "unknown": "nothing in the trace says what was waited for",
}
_COLOURS = {
    "compute": "compute", "communication": "exposed_communication", "copy": "exposed_copy",
    "cpu": "fourth", "between_ops": "fifth",
}  # fmt: skip
"""Kinds with a colour of their own; the rest are waits, in grey."""
_PERCENT_PER_LETTER = 1.25
_LEAST_PERCENT = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class PathPart:
    """One kind of the path in its bar."""

    colour: str
    title: str
    said: str
    left_percent: float
    width_percent: float
    named: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PathBar:
    """One window's path by kind."""

    title: str
    total: str
    parts: tuple[PathPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesLane:
    """A value over the window as an area, 100 high."""

    label: str
    colour: str
    path: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesLanes:
    """Lanes on one time axis."""

    rows: tuple[SeriesLane, ...]
    ticks: tuple[Tick, ...]
    unit: str


def path_bars(ranks: Sequence[Document], most: int) -> list[PathBar]:
    """The whole window and its steps; of several ranks each one's window, on one scale."""
    if len(ranks) > 1:
        windows = [(f"rank {one['rank']}", one["critical_path"]["whole"]) for one in ranks]
        scale = from_zero([window["window"] for _, window in windows])
        return [_bar(title, window, scale) for title, window in windows]
    path = ranks[0]["critical_path"]
    whole = path["whole"]
    bars = [_bar("whole window", whole, from_zero([whole["window"]]))]
    steps = path["steps"][:most] if len(path["steps"]) > 1 else []
    if steps:
        scale = from_zero([step["window"] for step in steps])
        bars += [_bar(step["label"], step, scale) for step in steps]
    return bars


def _bar(title: str, window: Document, scale: Scale) -> PathBar:
    parts, left = [], 0.0
    for kind, said in PATH.items():
        time = window[kind]
        width = scale.percent(time)
        if time and width >= _LEAST_PERCENT:
            share = words.share_of(time, window["window"])
            parts.append(
                PathPart(
                    colour=_COLOURS.get(kind, "idle"),
                    title=said,
                    said=f"{words.milliseconds(time)} ms, {share}",
                    left_percent=round(left, 3),
                    width_percent=width,
                    named=width >= _PERCENT_PER_LETTER * len(f"{said} {share}"),
                )
            )
        left += width
    return PathBar(title=title, total=words.show_ns(window["window"]), parts=tuple(parts))


def path_kinds(ranks: Sequence[Document]) -> list[tuple[str, str, str, str, str]]:
    """(kind, ms, share, what it is, colour) of what stands on the path, summed over ranks."""
    whole = [one["critical_path"]["whole"] for one in ranks]
    total = sum(window["window"] for window in whole)
    sums = {kind: sum(window[kind] for window in whole) for kind in PATH}
    return [
        (
            said,
            words.milliseconds(sums[kind]),
            words.share_of(sums[kind], total),
            PATH_MEANS[kind],
            _COLOURS.get(kind, "idle"),
        )
        for kind, said in PATH.items()
        if sums[kind]
    ]


def series_lanes(one: Document) -> SeriesLanes | None:
    """Queue lengths and copy rates of one rank over its window; None where there is neither."""
    rows = [
        SeriesLane(
            label=f"queue of stream {row['stream']}",
            colour="fourth",
            path=_area(row["peak"], max(row["peak"])),
            value=f"up to {row['longest']:,} waiting",
        )
        for row in one["queues"]
        if row["longest"] > 1
    ]
    rows += [
        SeriesLane(
            label=row["name"],
            colour="exposed_copy",
            path=_area(row["bytes_per_s"], row["busiest"]),
            value=f"up to {words.bandwidth(row['busiest'])}",
        )
        for row in one["bandwidth"]
        if row["busiest"] >= 1e6
    ]
    line = one["timeline"]
    length = line["end"] - line["start"]
    if not rows or length <= 0:
        return None
    unit = common_unit([length * 1e-9])
    scale = Scale(low=0.0, high=length * 1e-9)
    return SeriesLanes(rows=tuple(rows), ticks=scale.ticks(unit.show), unit=unit.name)


def _area(values: Sequence[float], highest: float) -> str:
    """Bins as columns; what is not nothing is seen."""
    path, height = "", 0.0
    for index, value in enumerate(values):
        tall = max(round(100 * value / highest, 1), 2.0) if value > 0 and highest else 0.0
        if tall != height:
            x = f"{100 * index / len(values):.2f}"
            path += f"H{x}V{100 - tall:g}" if path else f"M{x} 100V{100 - tall:g}"
            height = tall
    if path and height:
        path += "H100V100"
    return f"{path}Z" if path else ""
