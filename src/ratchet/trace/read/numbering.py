"""Building blocks of a reader: numbers for keys that repeat, and columns that grow."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ratchet.base.json_value import Json
from ratchet.trace.read.columns import CATEGORIES, Int64, Kind

_FAR = 2**62
_FIRST_ROWS = 1 << 10


class Numbers(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


class Written(dict[bytes, int]):
    """Numbers JSON values, whatever their layout."""

    def __init__(self, strings: Numbers) -> None:
        self.strings = strings

    def __missing__(self, raw: bytes) -> int:
        text = raw.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text))
        number = self[raw] = self.strings[text]
        return number


class Kinds(dict[Any, int]):
    """Maps categories as written to a Kind; unknown ones are OTHER."""

    def __missing__(self, key: object) -> int:
        kind = self[key] = int(CATEGORIES.get(str(key).lower(), Kind.OTHER))
        return kind


class Parts:
    """One column that grows.

    Its memory is one block, which goes back to the system when the column is done. Many small
    arrays would leave as much again behind, in pieces too small to reuse.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._let_go()

    def _let_go(self) -> None:
        self._held: NDArray[Any] = np.empty(0, dtype=self.dtype)
        self._count = 0

    def add(self, values: NDArray[Any]) -> None:
        end = self._count + values.size
        if end > self._held.size:
            # Memory that is allocated but not written to takes no space.
            grown = np.empty(max(end, 2 * self._held.size, _FIRST_ROWS), dtype=self.dtype)
            grown[: self._count] = self._held[: self._count]
            self._held = grown
        self._held[self._count : end] = values
        self._count = end

    @property
    def held(self) -> NDArray[Any]:
        """The column so far; do not change it."""
        return self._held[: self._count]

    def join(self, order: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the whole column, in `order` if given, and drop it here."""
        whole = self._held[: self._count]
        self._let_go()
        return whole if order is None else whole[order]


def numbered(table: dict[Any, int], keys: Sequence[object]) -> Sequence[int]:
    """Return the number of each key; TypeError for a key that cannot be hashed (a list)."""
    if len(keys) < 2:
        return [table[key] for key in keys]
    numbers: Sequence[int] = itemgetter(*keys)(table)
    return numbers


def integers(values: Sequence[Json]) -> Int64:
    """Convert whatever a writer used as a number to int64; -1 if it is not a number."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Json) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -_FAR < number < _FAR else -1
