"""Numbers for keys that repeat, and columns that grow: what a reader collects events into."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ratchet.trace.columns import CATEGORIES, Int64, Kind

_FAR = 2**62


class Numbers(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class Written(dict[bytes, int]):
    """The number of a JSON value's text, however its writer laid it out."""

    def __init__(self, strings: Numbers) -> None:
        self.strings = strings

    def __missing__(self, raw: bytes) -> int:
        text = raw.decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text))
        number = self[raw] = self.strings[text]
        return number


class Kinds(dict[Any, int]):
    """The Kind of a category as written; what is not known is OTHER."""

    def __missing__(self, key: Any) -> int:
        kind = self[key] = int(CATEGORIES.get(str(key).lower(), Kind.OTHER))
        return kind


class Parts:
    """One column that grows by arrays."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self.arrays: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        self.arrays.append(np.asarray(values).astype(self.dtype, copy=False))

    def join(self, order: NDArray[Any] | None = None) -> NDArray[Any]:
        """The whole column, in `order` where given; the parts are let go."""
        whole = np.concatenate(self.arrays) if self.arrays else np.zeros(0, dtype=self.dtype)
        self.arrays = []
        return whole if order is None else whole[order]


def numbered(table: dict[Any, int], keys: Sequence[Any]) -> Sequence[int]:
    """The number of each key; TypeError for a key that cannot be one (a list)."""
    if len(keys) < 2:
        return [table[key] for key in keys]
    numbers: Sequence[int] = itemgetter(*keys)(table)
    return numbers


def integers(values: Sequence[Any]) -> Int64:
    """Whatever a writer put down as a number, as int64; -1 where it is none."""
    try:
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -_FAR < number < _FAR else -1
