"""Shares that a user writes: 2%, 0.02."""

from __future__ import annotations

import math

from ratchet.errors import HistoryError


def parse_share(text: str, option: str) -> float:
    """Return a share that is at least 0 and below 1.

    Raises:
        HistoryError: the text is no such share.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise HistoryError(f"{option} {text!r} is no share: write 2% or 0.02, below 100%")
    return value
