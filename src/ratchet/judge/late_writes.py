"""Were the outputs finished when the answer came? A thread could go on while it is being stopped.

The judge reads a secret sample of places as soon as an answer arrives, and again when every process
of the candidate stands: a place that changed in between was written after the clock had stopped.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, Final

from ratchet.kernels.abi import DTYPE_CODES

SPOTS: Final = 48
SPOT_BYTES: Final = 128
INPUTS: Final = 0
"""The region of a batch that no kernel writes."""
ITEM_BYTES: Final = {
    DTYPE_CODES[name]: size
    for size, names in {
        1: ("bool", "uint8"),
        2: ("bfloat16", "float16"),
        4: ("float32", "int32"),
        8: ("float64", "int64"),
    }.items()
    for name in names
}


class OutputSpots:
    """Places of one batch's outputs, drawn from the system's entropy."""

    def __init__(self, layout: dict[str, Any], memories: Sequence[int]) -> None:
        """`layout` is what `SharedBatch.layout` gives; `memories` are its three descriptors."""
        rng = random.SystemRandom()
        slots = [slot for call in layout["calls"] for slot in call if slot[0] != INPUTS]
        drawn = rng.sample(slots, SPOTS) if len(slots) > SPOTS else _repeated(slots)
        self._spots = [_spot(slot, memories, rng) for slot in drawn]
        rng.shuffle(self._spots)

    def read(self) -> list[bytes]:
        """What stands there now."""
        return [os.pread(descriptor, size, offset) for descriptor, size, offset in self._spots]


def _repeated(slots: list[Any]) -> list[Any]:
    return slots * (SPOTS // len(slots)) if slots else []


def _spot(slot: Sequence[Any], memories: Sequence[int], rng: random.Random) -> tuple[int, int, int]:
    region, offset, code, size, stride = slot
    span = 0
    if 0 not in size:
        span = 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    span_bytes = span * ITEM_BYTES[code]
    length = min(SPOT_BYTES, span_bytes)
    return memories[region], length, offset + rng.randrange(span_bytes - length + 1)
