"""See that the outputs were finished when the answer came: a thread could go on after it.

The judge reads a secret sample of places as soon as an answer arrives, and again when every process
of the candidate stands: a place that changed in between was written after the clock had stopped. A
GPU works on while processes stand; there the reference worker reads, and the clock stops only when
it has read the first time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from ratchet.problems import dtypes

SPOTS: Final = 48
SPOT_BYTES: Final = 128
INPUTS: Final = 0
"""The region of a batch that no kernel writes."""
IN_PLACE: Final = 1
"""That of the tensors which a kernel changes."""
ITEM_BYTES: Final = {code: dtypes.ITEM_BYTES[name] for name, code in dtypes.DTYPE_CODES.items()}
"""Bytes of one element, by a dtype's code."""


Spot = tuple[int, int, int]
"""Region, offset and size in bytes."""
Read = Callable[[Sequence[Spot]], list[bytes]]


class OutputSpots:
    """Places of one batch's outputs, drawn from the system's entropy."""

    def __init__(
        self, layout: dict[str, Any], memories: Sequence[int], read: Read | None = None
    ) -> None:
        """`layout` is what `SharedBatch.layout` gives; `memories` are its three descriptors.

        `read` asks somebody else what stands at the places, where a file would not tell.
        """
        rng = random.SystemRandom()
        slots = [slot for call in layout["calls"] for slot in call if slot[0] != INPUTS]
        drawn = rng.sample(slots, SPOTS) if len(slots) > SPOTS else _repeated(slots)
        self._spots = [_spot(slot, rng) for slot in drawn]
        rng.shuffle(self._spots)
        self._memories, self._ask = memories, read

    def read(self) -> list[bytes]:
        """Return what stands there now."""
        if self._ask is not None:
            return self._ask(self._spots) if self._spots else []
        return [os.pread(self._memories[region], size, at) for region, at, size in self._spots]


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the elements from the first to the last of a tensor that is not empty."""
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))


def _repeated(slots: list[Any]) -> list[Any]:
    return slots * (SPOTS // len(slots)) if slots else []


def _spot(slot: Sequence[Any], rng: random.Random) -> Spot:
    region, offset, code, size, stride = slot
    span_bytes = 0 if 0 in size else span(size, stride) * ITEM_BYTES[code]
    length = min(SPOT_BYTES, span_bytes)
    return region, offset + rng.randrange(span_bytes - length + 1), length
