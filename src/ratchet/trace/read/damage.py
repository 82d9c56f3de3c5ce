"""Damaged times: what a profiler wrote of a slice that cannot have been so.

Profilers on ROCm sometimes write a kernel's duration past the start of the next one on its stream.
Old profilers write kernels whose times they lost at 0, hours before all others. Added up, either
makes a step of milliseconds last seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import DEVICE_KINDS, Bool, Int64, Kind

LEAST_FAR = 10_000_000
"""10 ms: work that lies nearer to a step than this is never far outside."""
SPARE = 20_000
"""20 us: slices of healthy recordings overlap the next on their stream by up to 13 us (a V100 in
2020; MI100 by 0.6 us)."""
CLIPPED = "a slice that ran past the next one's start on its stream was cut off there"
FAR = "an event far outside every step was left out"


def clipped(
    start: Int64, duration: Int64, kind: NDArray[np.uint8], lane: Int64, stream: NDArray[np.int32]
) -> tuple[Int64, int]:
    """Return the durations, none far past the next start on its stream, and how many were cut.

    A stream does one thing after another. Slices that begin together stay as they are, since
    stamps in microseconds do not tell them apart, and so does a small overlap (`SPARE`).
    """
    work = np.flatnonzero(np.isin(kind, DEVICE_KINDS) & (stream >= 0))
    if work.size < 2:
        return duration, 0
    order = work[np.lexsort((start[work], lane[work]))]
    begins, lanes = start[order], lane[order]
    # The next later start of the same lane: of a run of equal starts, the one after the run.
    last = np.flatnonzero(np.append((np.diff(begins) != 0) | (np.diff(lanes) != 0), True))
    after = last[np.searchsorted(last, np.arange(order.size))] + 1
    inside = after < order.size
    inside[inside] = lanes[after[inside]] == lanes[inside]
    room = begins[after[inside]] - begins[inside]
    rows = order[inside]
    late = duration[rows] > room + SPARE
    duration = duration.copy()
    duration[rows[late]] = room[late]
    return duration, int(late.sum())


def far_outside(start: Int64, end: Int64, kind: NDArray[np.uint8], step: Bool) -> Bool:
    """Return for each event, in order of start, whether it lies far outside every step.

    Events form groups with a gap between them as long as all steps together. A group without a
    step is far outside; in a trace without steps, one before the first CPU op or runtime call. If
    that is most of the device's work, its clock is another one: nothing is then.
    """
    none = np.zeros(start.size, dtype=bool)
    anchor = step if step.any() else np.isin(kind, (Kind.OP, Kind.RUNTIME))
    if not anchor.any():
        return none
    spans = end[anchor] - start[anchor]
    whole = int(spans.sum()) if step.any() else int(end[anchor].max() - start[anchor].min())
    gap = max(LEAST_FAR, whole)
    breaks = start[1:] - np.maximum.accumulate(end)[:-1] > gap
    if not breaks.any():
        return none
    group = np.concatenate(([0], np.cumsum(breaks)))
    far = ~np.isin(group, group[anchor]) if step.any() else group < group[anchor][0]
    for some in (np.isin(kind, DEVICE_KINDS), ~none):
        if 2 * int((far & some).sum()) > int(some.sum()):
            return none
    return far
