"""Equal stretches of a sequence, found exactly, by doubling and without a hash.

A stretch of 2^k entries gets its number from those of its two halves (Karp, Miller and Rosenberg,
"Rapid identification of repeated patterns in strings, trees and arrays", 1972). Any other stretch
gets its number from the two powers of two that cover it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import Int64

Index = NDArray[np.int64]


class Stretches:
    """The stretches of one sequence of whole numbers."""

    def __init__(self, entries: NDArray[np.integer]) -> None:
        _, number = np.unique(entries, return_inverse=True)
        self._levels: list[Index] = [number.reshape(-1).astype(np.int64)]
        """For each k and each position, the number of the 2^k entries that begin there."""

    def same(self, begin: Index, end: Index) -> Index:
        """Number the stretches [begin, end), none of them empty: equal ones get the same number."""
        length = end - begin
        assert length.size == 0 or length.min() > 0, "a stretch without entries"
        level = np.floor(np.log2(np.maximum(length, 1))).astype(np.int64)
        number = np.zeros(begin.size, dtype=np.int64)
        given = 0
        for k in np.unique(level).tolist():
            own = np.flatnonzero(level == k)
            of_power = self._level(k)
            first, last = of_power[begin[own]], of_power[end[own] - (1 << k)]
            found = _numbers(_numbers(first, last), length[own])
            number[own] = found + given
            given += int(found.max()) + 1
        return number

    def _level(self, k: int) -> Index:
        while len(self._levels) <= k:
            half = 1 << (len(self._levels) - 1)
            known = self._levels[-1]
            self._levels.append(_numbers(known[:-half], known[half:]))
        return self._levels[k]


def apart(begin: Index, length: int) -> Index:
    """Keep those of equal stretches, in order, that do not overlap one kept before."""
    if begin.size < 2 or np.diff(begin).min() >= length:
        return begin
    kept, free = [], -1
    for position in begin.tolist():
        if position >= free:
            kept.append(position)
            free = position + length
    return np.array(kept, dtype=np.int64)


def _numbers(left: Int64, right: Int64) -> Index:
    """Number the pairs of whole numbers, all at least 0."""
    if not left.size:
        return np.zeros(0, dtype=np.int64)
    key = left * (int(right.max()) + 1) + right
    _, number = np.unique(key, return_inverse=True)
    return np.asarray(number.reshape(-1), dtype=np.int64)
