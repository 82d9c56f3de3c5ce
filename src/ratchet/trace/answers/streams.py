"""Streams by busy time and queue length, and copies by rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.identity import Activity
from ratchet.trace.analysis.intervals import peak_overlap, union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import by_stream, device_rows
from ratchet.trace.answers.queues import waits
from ratchet.trace.read.columns import Kind, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRow:
    """One stream of one device in the window."""

    device: int
    stream: int
    count: int
    busy: int
    """Time with work running, in ns."""
    longest_queue: int
    """Largest number of pieces of work waiting at once; a graph is one piece."""
    mean_queue: float
    """Mean over the window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyRow:
    """All copies or fills of one sort."""

    name: str
    count: int
    time: int
    """Summed, in ns."""
    size_bytes: int
    """Counts only those whose size is in the trace."""
    bytes_per_s: float
    """Rate of those; 0 if no size is given."""


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
