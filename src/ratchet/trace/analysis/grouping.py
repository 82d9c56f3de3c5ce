"""Groups of rows that agree in several columns."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import Int64

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
