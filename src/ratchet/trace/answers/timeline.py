"""Busy time in equal bins of the window, by sort of work and by stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.identity import Activity
from ratchet.trace.analysis.intervals import Spans, union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import Sort, by_stream, device_rows
from ratchet.trace.read.columns import Bool, Int64, Kind, Trace

BINS = 400
"""Bins of a window: about as many as a screen has columns to show."""
LANES = 16
"""Streams or threads kept: the busiest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One sort of work, of one stream or thread or of all together."""

    name: str
    """The stream or thread; empty for all together."""
    sort: Sort
    busy: tuple[int, ...]
    """Busy ns in each bin."""

    @property
    def total(self) -> int:
        """In ns; the bins sum to it."""
        return sum(self.busy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The window in equal bins; the first begins at `start`, the last ends at `end` (ns)."""

    start: int
    end: int
    bins: int
    together: tuple[Lane, ...]
    """Compute, communication and copies; a sort without work is left out."""
    lanes: tuple[Lane, ...]
    """By stream (by thread on a CPU-only trace), the busiest first."""


def bin_edges(start: int, end: int) -> Int64:
    """Return the start of each bin of a window and the end of the last one, in ns."""
    return np.linspace(0, end - start, BINS + 1).astype(np.int64) + start


def timeline(trace: Trace, links: Links, communication: Bool, whole: Activity) -> Timeline:
    """Sum busy time by bin, without work carried in from before the recording."""
    edges = bin_edges(whole.start, whole.end)
    sorts: tuple[tuple[Sort, Spans], ...] = (
        ("compute", whole.compute),
        ("communication", whole.communication),
        ("copy", whole.copy),
    )
    together = tuple(_lane("", sort, spans, edges) for sort, spans in sorts if spans.start.size)
    found = (_by_stream if trace.on_device else _by_thread)(trace, links, communication, edges)
    found.sort(key=lambda lane: -lane.total)
    return Timeline(
        start=whole.start,
        end=whole.end,
        bins=BINS,
        together=together,
        lanes=tuple(found[:LANES]),
    )


def _by_stream(trace: Trace, links: Links, communication: Bool, edges: Int64) -> list[Lane]:
    rows = device_rows(trace, links)
    several = np.unique(trace.device[rows]).size > 1
    found = by_stream(trace, rows)
    found.sort(key=lambda one: -int(trace.duration[one[2]].sum()))
    lanes = []
    for device, stream, own in found[:LANES]:
        name = f"device {device} stream {stream}" if several else f"stream {stream}"
        kernel = trace.kind[own] == Kind.KERNEL
        lanes += _lanes(
            name,
            trace,
            edges,
            (
                ("compute", own[kernel & ~communication[own]]),
                ("communication", own[kernel & communication[own]]),
                ("copy", own[~kernel]),
            ),
        )
    return lanes


def _by_thread(trace: Trace, links: Links, communication: Bool, edges: Int64) -> list[Lane]:
    counted = communication | (trace.kind == Kind.OP)
    lanes = []
    for lane in np.unique(trace.lane[counted]).tolist():
        own = np.flatnonzero(counted & (trace.lane == lane))
        process, thread = trace.lanes[lane]
        lanes += _lanes(
            f"thread {thread}" if thread else f"process {process}",
            trace,
            edges,
            (
                ("compute", own[~communication[own]]),
                ("communication", own[communication[own]]),
            ),
        )
    return lanes


def _lanes(
    name: str, trace: Trace, edges: Int64, parts: tuple[tuple[Sort, NDArray[np.intp]], ...]
) -> list[Lane]:
    return [
        _lane(name, sort, union(trace.start[rows], trace.start[rows] + trace.duration[rows]), edges)
        for sort, rows in parts
        if rows.size
    ]


def _lane(name: str, sort: Sort, spans: Spans, edges: Int64) -> Lane:
    busy = spans.covered(edges[:-1], edges[1:])
    return Lane(name=name, sort=sort, busy=tuple(busy.tolist()))
