"""Times of a trace to integer nanoseconds, digit by digit, and what is damaged among them.

A double holds 53 bits, but microseconds since 1970 with three decimals need 61: a parser that uses
doubles loses up to a quarter of a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, DecimalException

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from ratchet.trace.read.columns import DEVICE_KINDS, Bool, Int64, Kind

MISSING = -(2**62)  # A missing or unreadable time; no real time reaches it
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


# Profilers on ROCm sometimes write a kernel's duration past the start of the next one on its
# stream. Old profilers write kernels whose times they lost at 0, hours before all others. Added up,
# either makes a step of milliseconds last seconds.

LEAST_FAR = 10_000_000  # 10 ms: work that lies nearer to a step than this is never far outside
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
