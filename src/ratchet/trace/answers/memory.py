"""Device memory over time: the peak by category, and churn."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ratchet.trace.analysis.intervals import union
from ratchet.trace.analysis.links import Links
from ratchet.trace.read.columns import Bool, Int64, Kind, Trace

Category = Literal["forward", "backward", "optimizer", "before the recording", "other"]
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)")
POINTS = 500  # A report keeps this many samples of the timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Allocations of one device, or of the CPU if no device memory was recorded."""

    on_device: bool
    allocations: int
    frees: int
    churn_bytes: int  # Bytes both allocated and freed in the recording
    peak_bytes: int  # Most bytes allocated at once, including those from before the recording
    peak_time: int
    peak_reserved_bytes: int
    at_peak: dict[Category, int]
    """Bytes at the peak, by the phase that allocated them; sums to the peak."""
    timeline: tuple[tuple[int, int], ...]
    """(time in ns, bytes allocated), thinned so that every stretch keeps its highest point."""


def memory(trace: Trace, links: Links) -> MemoryUse | None:
    """Return the memory of the device with most allocations; None if none were recorded."""
    events = trace.memory
    if not events.time.size:
        return None
    chosen = events.on_device
    if chosen.any():
        devices, counts = np.unique(events.device[chosen], return_counts=True)
        chosen = chosen & (events.device == devices[np.argmax(counts)])
    else:
        chosen = np.ones(events.time.size, dtype=bool)
    time, size = events.time[chosen], events.size[chosen]
    allocated = events.allocated[chosen]
    running = np.cumsum(size)
    # The allocator's total includes earlier allocations; without it, start from the lowest level.
    base = int(allocated[0] - size[0]) if allocated[0] >= 0 else int(max(0, -running.min()))
    level = running + base
    top = int(np.argmax(level))
    freed, at_peak = _at(time, size, events.address[chosen], top, trace, links)
    at_peak["before the recording"] = int(level[top]) - sum(at_peak.values())
    kept = list(range(time.size))
    if time.size > POINTS:
        bounds = np.linspace(0, time.size, POINTS + 1).astype(int)
        kept = [a + int(np.argmax(level[a:b])) for a, b in itertools.pairwise(bounds)]
    return MemoryUse(
        on_device=bool(events.on_device.any()),
        allocations=int((size > 0).sum()),
        frees=int((size < 0).sum()),
        churn_bytes=freed,
        peak_bytes=int(level[top]),
        peak_time=int(time[top]),
        peak_reserved_bytes=max(int(events.reserved[chosen].max()), 0),
        at_peak=at_peak,
        timeline=tuple((int(time[i]), int(level[i])) for i in kept),
    )


def _at(
    time: Int64, size: Int64, address: Int64, top: int, trace: Trace, links: Links
) -> tuple[int, dict[Category, int]]:
    """Return (bytes allocated and freed in the recording, bytes live at the peak by category)."""
    live: dict[int, int] = {}
    churn = 0
    standing: dict[int, int] = {}
    for i, (where, amount) in enumerate(zip(address.tolist(), size.tolist(), strict=True)):
        if amount > 0:
            live[where] = i
        elif amount < 0 and live.pop(where, None) is not None:
            churn -= amount
        if i == top:
            standing = dict(live)
    made = np.array(sorted(standing.values()), dtype=np.int64)
    totals: dict[Category, int] = defaultdict(int)
    for category, amount in zip(_phase(time[made], trace, links), size[made].tolist(), strict=True):
        totals[category] += amount
    return churn, dict(totals)


def _phase(time: Int64, trace: Trace, links: Links) -> list[Category]:
    is_op = trace.kind == Kind.OP
    optimizer = trace.named(_OPTIMIZER)[trace.text]
    optimizer &= np.isin(trace.kind, (Kind.OP, Kind.ANNOTATION))
    phases: tuple[tuple[Category, Bool], ...] = (
        ("optimizer", optimizer),
        ("backward", is_op & links.backward),
        ("forward", is_op & ~links.backward),
    )
    names: list[Category] = ["other"] * time.size
    for name, chosen in reversed(phases):  # the first that applies is written last
        spans = union(trace.start[chosen], trace.end[chosen])
        for at in np.flatnonzero(spans.covered(time, time + 1)).tolist():
            names[at] = name
    return names
