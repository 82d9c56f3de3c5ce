"""The call tree of each thread, found without a loop over events."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import Bool, Int64

Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Nest:
    """The call tree of a choice of events; positions are into that choice."""

    parent: Index
    """The innermost event around each, -1 for an outermost one."""
    levels: tuple[Index, ...]
    """Positions by depth, the outermost first."""

    def nearest(self, wanted: Bool) -> Index:
        """Return for each event the innermost wanted one around it, -1 if there is none."""
        near = np.full(self.parent.size, -1, dtype=np.int64)
        for level in self.levels[1:]:
            above = self.parent[level]
            known = above >= 0
            near[level] = np.where(known & wanted[above], above, np.where(known, near[above], -1))
        return near


def nest(lane: NDArray[np.int32], start: Int64, duration: Int64) -> Nest:
    """Build the tree of events in the order of a `Trace`: by start, the longer first."""
    count = start.size
    if not count:
        return Nest(parent=np.zeros(0, dtype=np.int64), levels=())
    order = np.argsort(lane, kind="stable")
    # With doubled times, an event of length 0 ends after its start.
    begin = 2 * (start[order] - start.min())
    end = begin + np.maximum(2 * duration[order], 1)
    begin, end = _apart(lane[order].astype(np.int64), begin, end)
    depth = np.arange(count) - np.searchsorted(np.sort(end), begin, side="right")
    parent = np.full(count, -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    levels = [by_depth[a:b] for a, b in itertools.pairwise(bounds)]
    own_lane = lane[order]
    for above, level in itertools.pairwise(levels):
        found = np.searchsorted(above, level) - 1
        candidate = above[np.maximum(found, 0)]
        fits = (found >= 0) & (own_lane[candidate] == own_lane[level])
        parent[level] = np.where(fits, candidate, -1)
    result = np.full(count, -1, dtype=np.int64)
    result[order] = np.where(parent >= 0, order[np.maximum(parent, 0)], -1)
    return Nest(parent=result, levels=tuple(order[level] for level in levels))


def _apart(lane: Int64, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Shift the lanes' times so that no two lanes meet."""
    width = int(end.max()) + 2
    if (int(lane.max()) + 1) * width < 2**62:
        return begin + lane * width, end + lane * width
    times, rank = np.unique(np.concatenate((begin, end)), return_inverse=True)
    rank = rank.reshape(-1).astype(np.int64)
    shift = lane * (times.size + 1)
    return rank[: begin.size] + shift, rank[begin.size :] + shift
