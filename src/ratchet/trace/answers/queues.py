"""Streams: their queue's length over time, when it was full, busy time, and copies by rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis import Activity
from ratchet.trace.analysis.intervals import Spans, peak_overlap, union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import by_stream, device_rows
from ratchet.trace.answers.timeline import bin_edges
from ratchet.trace.read.columns import Int64, Kind, Platform, Trace

QUEUE_LIMITS: dict[Platform, int] = {"cuda": 1024, "rocm": 16_384}
"""The number of pieces of work that a queue holds before a launch waits.

CUDA: about 1,000 launches of a stream return at once, and the next one waits (NVIDIA's forum,
thread 68937; HolisticTraceAnalysis counts 1,024). NVIDIA documents no figure.
ROCm: AQL packets of a queue, the default of ROC_AQL_QUEUE_SIZE in HIP's list of environment
variables. A piece of work takes one packet or a few, and streams may share a queue.
No figure is known for other platforms, so their queues never count as full.
"""
_NO_LIMIT = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSeries:
    """The queue of one stream as a step function: `length` holds from each `time` to the next.

    A piece of work waits from the start of the call that launched it to its own start. All work
    that one call launched onto a stream (a captured graph) is one piece.
    """

    device: int
    stream: int
    time: Int64  # In ns
    length: Int64

    def at_least(self, limit: int, start: int, end: int) -> Spans:
        """Return when, inside a window (ns), the queue held at least `limit` pieces of work."""
        full = self.length[:-1] >= limit
        found = union(self.time[:-1][full], self.time[1:][full])
        return found.within(start, end)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """One stream's queue over the window, in equal bins; times in ns."""

    device: int
    stream: int
    start: int  # Start of the first bin and of the window. Work can be launched before the window.
    end: int
    longest: int
    limit: int  # The length that counts as full; 0 if unknown
    full: int  # Time at or above the limit
    blocked: int  # The part of `full` that a thread spent in a call that launches onto this stream
    mean: tuple[float, ...]  # Mean length in each bin
    peak: tuple[int, ...]  # Largest length in each bin


def queue_series(trace: Trace, links: Links) -> tuple[QueueSeries, ...]:
    """Return the exact queue of each stream, the one with most launches first."""
    return tuple(
        _series(device, stream, *waits(trace, links, rows))
        for device, stream, rows in _streams(trace, links)
    )


def queues(
    trace: Trace, links: Links, activity: Activity, limit: int | None = None
) -> tuple[QueueRow, ...]:
    """Return each stream's queue by bin, and how long it was full.

    `limit` is the platform's by default. Work without a known launch is not counted.
    """
    limit = QUEUE_LIMITS.get(trace.platform, 0) if limit is None else limit
    start, end = activity.start, activity.end
    edges = bin_edges(start, end)
    table = []
    for device, stream, rows in _streams(trace, links):
        called, begun = waits(trace, links, rows)
        series = _series(device, stream, called, begun)
        full = series.at_least(limit or _NO_LIMIT, start, end)
        calls = np.unique(links.launch[rows])
        calling = union(trace.start[calls], trace.end[calls])
        waited = np.diff(_ramp(np.sort(called), edges) - _ramp(np.sort(begun), edges))
        width = np.maximum(np.diff(edges), 1)
        inside = (series.time >= start) & (series.time < end)
        standing = max(int(np.searchsorted(series.time, start, side="right")) - 1, 0)
        lengths = np.append(series.length[inside], series.length[standing])
        table.append(
            QueueRow(
                device=device,
                stream=stream,
                start=start,
                end=end,
                longest=int(lengths.max()),
                limit=limit,
                full=full.length,
                blocked=(calling & full).length,
                mean=tuple(np.round(waited / width, 3).tolist()),
                peak=tuple(_peaks(series, edges).tolist()),
            )
        )
    return tuple(table)


def _streams(trace: Trace, links: Links) -> list[tuple[int, int, NDArray[np.intp]]]:
    """Return (device, stream, rows with a launch), the stream with most of them first."""
    rows = device_rows(trace, links)
    found = by_stream(trace, rows[links.launch[rows] >= 0])
    return sorted(found, key=lambda one: -one[2].size)


def waits(trace: Trace, links: Links, rows: NDArray[np.intp]) -> tuple[Int64, Int64]:
    """Return (launched, begun) in ns of each piece of work; all rows are of one stream.

    A wait that would be negative, because clocks differ, is 0.
    """
    calls, piece = np.unique(links.launch[rows], return_inverse=True)
    begun = np.full(calls.size, np.iinfo(np.int64).max)
    np.minimum.at(begun, piece.reshape(-1), trace.start[rows])
    return np.minimum(trace.start[calls], begun), begun


def _series(device: int, stream: int, called: Int64, begun: Int64) -> QueueSeries:
    time, place = np.unique(np.concatenate((called, begun)), return_inverse=True)
    step = np.ones(called.size + begun.size)
    step[called.size :] = -1
    change = np.bincount(place.reshape(-1), weights=step, minlength=time.size)
    return QueueSeries(
        device=device, stream=stream, time=time, length=np.cumsum(change).astype(np.int64)
    )


def _ramp(points: Int64, time: Int64) -> Int64:
    """Return for each time the sum of its distances to the points before it."""
    origin = points[0]
    before = np.searchsorted(points, time, side="right")
    sums = np.concatenate(([0], np.cumsum(points - origin)))
    return np.asarray(before * (time - origin) - sums[before], dtype=np.int64)


def _peaks(series: QueueSeries, edges: Int64) -> Int64:
    standing = np.searchsorted(series.time, edges[:-1], side="right") - 1
    peak = np.where(standing >= 0, series.length[np.maximum(standing, 0)], 0)
    place = np.searchsorted(edges, series.time, side="right") - 1
    inside = (place >= 0) & (place < peak.size)
    np.maximum.at(peak, place[inside], series.length[inside])
    return peak


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRow:
    device: int
    stream: int
    count: int
    busy: int  # Time with work running, in ns
    longest_queue: int  # Largest number of pieces of work waiting at once; a graph is one piece
    mean_queue: float  # Mean over the window


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyRow:
    """All copies or fills of one sort."""

    name: str
    count: int
    time: int  # Summed, in ns
    size_bytes: int  # Counts only those whose size is in the trace
    bytes_per_s: float  # Rate of those; 0 if no size is given


def streams(trace: Trace, links: Links, activity: Activity) -> tuple[StreamRow, ...]:
    """Return every stream, the busiest first."""
    rows = device_rows(trace, links)
    window = max(activity.end - activity.start, 1)
    table = []
    for device, stream, own in by_stream(trace, rows):
        known = own[links.launch[own] >= 0]
        called, begun = waits(trace, links, known)
        table.append(
            StreamRow(
                device=device,
                stream=stream,
                count=own.size,
                busy=union(trace.start[own], trace.start[own] + trace.duration[own]).length,
                longest_queue=peak_overlap(called, begun),
                mean_queue=int((begun - np.maximum(called, activity.start)).clip(0).sum()) / window,
            )
        )
    return tuple(sorted(table, key=lambda row: -row.busy))


def copies(trace: Trace, links: Links) -> tuple[CopyRow, ...]:
    """Return copies and fills by name, the longest first."""
    rows = device_rows(trace, links)
    rows = rows[trace.kind[rows] != Kind.KERNEL]
    table = []
    for name in np.unique(trace.text[rows]):
        own = rows[trace.text[rows] == name]
        sized = own[trace.size[own] >= 0]
        size, time = int(trace.size[sized].sum()), int(trace.duration[sized].sum())
        table.append(
            CopyRow(
                name=trace.strings[name],
                count=own.size,
                time=int(trace.duration[own].sum()),
                size_bytes=size,
                bytes_per_s=size / time * 1e9 if time else 0.0,
            )
        )
    return tuple(sorted(table, key=lambda row: -row.time))
