"""Durations and shares as users write them: 90, 90s, 30m, 2h; 2%, 0.02."""

from __future__ import annotations

import math
import re
from typing import Final

from ratchet.base.errors import RatchetError

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([smh]?)\s*")


def parse_duration_s(given: object, what: str, *, least_s: float, too_short: str = "") -> float:
    """Return the seconds of `90s`, `30m`, `2h` or a number; at least `least_s`.

    `what` names the option, and `too_short` says what less is too short for. Raises RatchetError.
    """
    match = _DURATION.fullmatch(str(given))
    seconds = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not math.isfinite(seconds) or isinstance(given, bool):
        raise RatchetError(f"{what} {given!r} is not a duration: write 90s, 30m or 2h")
    if seconds < least_s:
        why = f", too short for {too_short}" if too_short else ""
        raise RatchetError(
            f"{what} {given!r} is under {least_s:.0f} s{why}: give at least {least_s:.0f}s"
        )
    return seconds


def parse_share(text: str, what: str, *, below: float = 1.0) -> float:
    """Return the share that `2%` or `0.02` names, at least 0 and below a limit.

    `what` names the option. Raises RatchetError.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < below:
        raise RatchetError(f"{what} {text!r} is no share: write 2% or 0.02, below {below:.0%}")
    return share
