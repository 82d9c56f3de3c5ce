"""Fit a step into a memory budget: measure it, plan what each block keeps, check the plan."""

from __future__ import annotations

import math
import re
from typing import Final

from ratchet.base.errors import PlanError

# Sizes of memory as users write them: 2GiB, 800MB, 24g.

_UNITS: Final = {"": 3, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size: `2GiB` is 2^31, `2GB` is 2e9; raises PlanError."""
    match = _SIZE.fullmatch(text)
    if match is None or not match[2]:
        raise PlanError(f"size {text!r} is not a size: write 2GiB, 800MiB or 16GB")
    base = 1000 if match[4] and not match[3] else 1024
    size = float(match[1]) * base ** _UNITS[match[2].lower()]
    if not math.isfinite(size) or size < 1:
        raise PlanError(f"size {text!r} holds nothing: write 2GiB, 800MiB or 16GB")
    return int(size)
