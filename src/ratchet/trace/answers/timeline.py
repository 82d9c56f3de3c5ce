"""Equal bins of the window: busy time by sort of work and by stream, and copy rates by sort."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis import Activity
from ratchet.trace.analysis.intervals import Spans, union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import SORTS, Sort, by_lane, device_rows
from ratchet.trace.read.columns import Bool, Int64, Kind, Trace

BINS = 400  # Bins of a window: about as many as a screen has columns to show
LANES = 16  # Streams or threads kept: the busiest


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One sort of work, of one stream or thread or of all together."""

    name: str  # The stream or thread; empty for all together
    sort: Sort
    busy: tuple[int, ...]  # Busy ns in each bin

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
    together: tuple[Lane, ...]  # Compute, communication and copies; a sort without work is left out
    lanes: tuple[Lane, ...]  # By stream (by thread on a CPU-only trace), the busiest first


def bin_edges(start: int, end: int) -> Int64:
    """Return the start of each bin of a window and the end of the last one, in ns."""
    return np.linspace(0, end - start, BINS + 1).astype(np.int64) + start


def timeline(trace: Trace, links: Links, communication: Bool, whole: Activity) -> Timeline:
    """Sum busy time by bin, without work carried in from before the recording."""
    edges = bin_edges(whole.start, whole.end)
    sorts = zip(SORTS, (whole.compute, whole.communication, whole.copy), strict=True)
    together = tuple(_lane("", sort, spans, edges) for sort, spans in sorts if spans.start.size)
    counted = np.flatnonzero(communication | (trace.kind == Kind.OP))
    found = []
    for name, own in by_lane(trace, device_rows(trace, links) if trace.on_device else counted):
        copied = (trace.kind[own] != Kind.KERNEL) & trace.on_device
        sent = communication[own] & ~copied
        for sort, chosen in zip(SORTS, (~sent & ~copied, sent, copied), strict=True):
            rows = own[chosen]
            if rows.size:
                spans = union(trace.start[rows], trace.start[rows] + trace.duration[rows])
                found.append(_lane(name, sort, spans, edges))
    found.sort(key=lambda lane: -lane.total)
    return Timeline(
        start=whole.start,
        end=whole.end,
        bins=BINS,
        together=together,
        lanes=tuple(found[:LANES]),
    )


def _lane(name: str, sort: Sort, spans: Spans, edges: Int64) -> Lane:
    busy = spans.covered(edges[:-1], edges[1:])
    return Lane(name=name, sort=sort, busy=tuple(busy.tolist()))


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSeries:
    """The rate of one sort of copy as a step function: it holds from each `time` to the next."""

    name: str
    time: Int64  # In ns
    bytes_per_s: NDArray[np.float64]  # Summed over the copies of this sort that run at that time


@dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthRow:
    """One sort of copy over the window, in equal bins; times in ns."""

    name: str
    start: int  # Start of the first bin and of the window
    end: int
    size_bytes: int  # Counts only copies whose size is in the trace
    busiest: float  # Bytes a second of the fastest bin
    bytes_per_s: tuple[float, ...]  # Mean of each bin, idle time included


def copy_rates(trace: Trace, links: Links) -> tuple[RateSeries, ...]:
    """Return the exact rate of each sort of copy and fill, if each moves its bytes evenly."""
    found = []
    for name, rows in _sorts(trace, links):
        time, change = _changes(trace, rows)
        rate: NDArray[np.float64] = np.rint(np.maximum(np.cumsum(change) * 1e9, 0.0))
        found.append(RateSeries(name=name, time=time, bytes_per_s=rate))
    return tuple(found)


def bandwidth(trace: Trace, links: Links, activity: Activity) -> tuple[BandwidthRow, ...]:
    """Return the rate of each sort of copy by bin; the sort that moved most comes first."""
    start, end = activity.start, activity.end
    edges = bin_edges(start, end)
    width = np.maximum(np.diff(edges), 1)
    table = []
    for name, rows in _sorts(trace, links):
        rate = np.diff(_moved_before(trace, rows, edges)) / width * 1e9
        table.append(
            BandwidthRow(
                name=name,
                start=start,
                end=end,
                size_bytes=int(trace.size[rows].sum()),
                busiest=float(rate.max()),
                bytes_per_s=tuple(np.maximum(np.round(rate), 0.0).tolist()),
            )
        )
    return tuple(sorted(table, key=lambda row: -row.size_bytes))


def _sorts(trace: Trace, links: Links) -> list[tuple[str, NDArray[np.intp]]]:
    """Return (name, rows) of the copies and fills that took time and have a known size."""
    rows = device_rows(trace, links)
    rows = rows[(trace.kind[rows] != Kind.KERNEL) & (trace.size[rows] >= 0)]
    rows = rows[trace.duration[rows] > 0]
    names = np.unique(trace.text[rows])
    found = [(trace.strings[name], rows[trace.text[rows] == name]) for name in names.tolist()]
    return sorted(found, key=lambda one: one[0])


def _changes(trace: Trace, rows: NDArray[np.intp]) -> tuple[Int64, NDArray[np.float64]]:
    """Return (times, change of the rate at each, in bytes per ns)."""
    rate = trace.size[rows] / trace.duration[rows]
    moments: Int64 = np.concatenate((trace.start[rows], trace.end[rows]))
    time, place = np.unique(moments, return_inverse=True)
    step = np.concatenate((rate, -rate))
    change = np.bincount(place.reshape(-1), weights=step, minlength=time.size)
    return time, change.astype(np.float64)


def _moved_before(trace: Trace, rows: NDArray[np.intp], edges: Int64) -> NDArray[np.float64]:
    time, change = _changes(trace, rows)
    rate = np.cumsum(change)[:-1]
    moved = np.concatenate(([0.0], np.cumsum(rate * np.diff(time))))
    # A double holds the distance to the first copy exactly, but not a time since 1970.
    since, first = (edges - time[0]).astype(np.float64), (time - time[0]).astype(np.float64)
    return np.asarray(np.interp(since, first, moved), dtype=np.float64)
