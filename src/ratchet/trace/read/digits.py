"""Times of a trace to integer nanoseconds, digit by digit.

A double holds 53 bits, but microseconds since 1970 with three decimals need 61: a parser that uses
doubles loses up to a quarter of a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, DecimalException

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

MISSING = -(2**62)
"""A missing or unreadable time; no real time reaches it."""
EARLIEST, LATEST = -(2**60), 2**61
"""Bounds of a valid time: 36 years before the clock's zero, 73 after."""
_COMMA, _DOT, _ZERO, _NINE = b",.09"
_WHOLE_DIGITS = 16
"""So many digits of microseconds fit into 63 bits as nanoseconds, unless the first is a 9."""


def nanoseconds(tokens: Sequence[Raw | bytes]) -> NDArray[np.int64]:
    """Turn microseconds as written in JSON into integer nanoseconds; MISSING if not a number."""
    if not tokens:
        return np.zeros(0, dtype=np.int64)
    text = b",".join(tokens) + b","
    characters = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(characters == _COMMA)
    digit = (characters >= _ZERO) & (characters <= _NINE)
    dots = np.flatnonzero(characters == _DOT)
    if ends.size != len(tokens) or np.count_nonzero(digit) + dots.size + ends.size != len(text):
        return np.array([_one(bytes(token)) for token in tokens], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    whole_end = ends.copy()
    if dots.size == ends.size and (starts <= dots).all() and (dots < ends).all():
        owner = np.arange(ends.size)
        whole_end = dots
    else:
        owner = np.searchsorted(ends, dots)
        whole_end[owner] = dots
    width = whole_end - starts
    plain = (width < _WHOLE_DIGITS) | ((width == _WHOLE_DIGITS) & (characters[starts] < _NINE))
    plain &= (width > 0) & (ends - whole_end <= 4)
    if not plain.all() or (np.diff(owner) == 0).any():
        return np.array([_one(bytes(token)) for token in tokens], dtype=np.int64)
    decimals = np.maximum(ends - whole_end - 1, 0)
    if (decimals == decimals[0]).all():
        return _possible(_scaled(text, int(decimals[0])))
    values = np.empty(len(tokens), dtype=np.int64)
    for number in np.unique(decimals).tolist():
        chosen = np.flatnonzero(decimals == number)
        values[chosen] = _scaled(b",".join([tokens[i] for i in chosen.tolist()]), number)
    return _possible(values)


def _scaled(text: bytes, decimals: int) -> NDArray[np.int64]:
    """Scale numbers that all have the same number of decimals."""
    values = np.fromstring(text.replace(b".", b""), dtype=np.int64, sep=",")
    return np.asarray(values * 10 ** (3 - decimals), dtype=np.int64)


def _possible(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(values < LATEST, values, MISSING)


def _one(token: bytes) -> int:
    """Parse one number in any form that JSON writers use, quoted or not."""
    try:
        value = Decimal(token.strip(b'" ').decode()) * 1000
        nanosecond = int(value.to_integral_value())
    except (DecimalException, UnicodeDecodeError, ValueError, OverflowError):
        return MISSING
    return nanosecond if EARLIEST < nanosecond < LATEST else MISSING
