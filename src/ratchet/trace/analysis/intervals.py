"""Sets of time as merged intervals, in integer nanoseconds, half open; and groups of equal rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import Int64


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals that do not touch, in order of time. Make one with `union`."""

    start: Int64
    end: Int64

    @property
    def length(self) -> int:
        """Total covered time, in ns."""
        return int((self.end - self.start).sum())

    def before(self, time: Int64) -> Int64:
        """Return the covered time before each of these times, in ns."""
        if not self.start.size:
            return np.zeros(np.shape(time), dtype=np.int64)
        total = np.concatenate(([0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, time, side="right")
        open_start = self.start[np.maximum(index - 1, 0)]
        open_end = self.end[np.maximum(index - 1, 0)]
        inside = np.where(index > 0, np.minimum(time, open_end) - open_start, 0)
        return np.asarray(total[np.maximum(index - 1, 0)] + inside, dtype=np.int64)

    def covered(self, start: Int64, end: Int64) -> Int64:
        """Return the covered time inside each window, in ns."""
        return self.before(end) - self.before(start)

    def within(self, start: int, end: int) -> Spans:
        """Return the part inside one window."""
        begins, ends = np.maximum(self.start, start), np.minimum(self.end, end)
        keep = begins < ends
        return Spans(begins[keep], ends[keep])

    def gaps(self, start: int, end: int) -> Spans:
        """Return the part of one window that these do not cover."""
        inside = self.within(start, end)
        begins = np.concatenate(([start], inside.end))
        ends = np.concatenate((inside.start, [end]))
        keep = begins < ends
        return Spans(begins[keep], ends[keep])

    def __or__(self, other: Spans) -> Spans:
        return union(
            np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end))
        )

    def __sub__(self, other: Spans) -> Spans:
        if not self.start.size:
            return self
        free = other.gaps(int(self.start[0]), int(self.end[-1]))
        return self & free

    def __and__(self, other: Spans) -> Spans:
        """Return the time that both cover."""
        if not self.start.size or not other.start.size:
            return Spans(self.start[:0], self.end[:0])
        first = np.searchsorted(other.end, self.start, side="right")
        last = np.searchsorted(other.start, self.end, side="left")
        count = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(self.start.size), count)
        theirs = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        theirs += np.repeat(first, count)
        return Spans(
            np.maximum(self.start[mine], other.start[theirs]),
            np.minimum(self.end[mine], other.end[theirs]),
        )


def union(start: Int64, end: Int64) -> Spans:
    """Merge intervals; empty ones cover nothing."""
    keep = start < end
    start, end = start[keep], end[keep]
    if not start.size:
        return Spans(start, end)
    if (np.diff(start) < 0).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(first)[1:] - 1, [start.size - 1]))
    return Spans(start[first], reach[last])


def peak_overlap(start: Int64, end: Int64) -> int:
    """Return the largest number of intervals that are open at once."""
    if not start.size:
        return 0
    time = np.concatenate((start, end))
    step = np.concatenate((np.ones(start.size, np.int64), -np.ones(end.size, np.int64)))
    order: NDArray[np.intp] = np.lexsort((step, time))
    return int(np.cumsum(step[order]).max())


_MOST = 2**62


def alike(*columns: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Group rows that hold the same whole numbers, in the order of these numbers.

    Return (the first row of each group, the group of each row), as `np.unique` does for the columns
    stacked, in a tenth of its time and memory.
    """
    code: Int64 = np.zeros(columns[0].size, dtype=np.int64)
    count = 1
    for column in columns:
        if not column.size:
            break
        values = column.astype(np.int64)
        low = int(values.min())
        width = int(values.max()) - low + 1
        if count * width >= _MOST:
            (code, count), (values, width), low = _ranked(code), _ranked(values), 0
        code = code * width + (values - low)
        count *= width
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return first, group.reshape(-1)


def _ranked(values: Int64) -> tuple[Int64, int]:
    """Return each value's rank among the distinct ones, and how many of these there are."""
    kinds, place = np.unique(values, return_inverse=True)
    return place.reshape(-1).astype(np.int64), kinds.size


def groups(number: NDArray[np.integer]) -> list[NDArray[np.intp]]:
    """Return the positions of each number, in order, the smallest number first."""
    order = np.argsort(number, kind="stable")
    edges = np.flatnonzero(np.diff(number[order], prepend=-1, append=-1))
    return [order[a:b] for a, b in itertools.pairwise(edges.tolist())]


def sums_by(group: NDArray[np.integer], values: Int64, size: int) -> Int64:
    """Sum by group, exactly: a double holds every sum of nanoseconds below 104 days."""
    return np.bincount(group, weights=values, minlength=size).astype(np.int64)
