"""The places of a batch's tensors: what either arm knows before the clock starts. No values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from ratchet.base.process.channel import Message

INPUTS, IN_PLACE, OUTPUTS = 0, 1, 2
"""Regions of a batch: what a kernel may only read, what it changes, and what it writes."""
NAMES: Final = ("inputs", "in-place", "outputs")
BATCH_PART: Final = 10
"""A batch's inputs and outputs may take this part of a GPU's free memory. It exists as it was drawn
and at its places, and each of four arms keeps its last batch and its results."""


class Slot(NamedTuple):
    """The place of one tensor of one call."""

    region: int
    offset: int
    dtype: int
    """Its code in `problems.dtypes`."""
    size: Sequence[int]
    stride: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    calls: Sequence[Sequence[Slot]]
    input_count: int = 0
    region_bytes: Sequence[int] = ()
    slack_pages: Sequence[int] = ()
    bases: Sequence[int] = ()
    """The addresses at which the regions begin, for a batch that lies where earlier ones lay; none
    for one that must lie elsewhere."""
    scalars: Sequence[float] = ()
    writable_inputs: bool = False
    views: bool = False
    """True if the reference's own outputs share memory with its inputs or one another."""
    seeds: bool = False
    """True if the reference sets torch's seed."""

    @staticmethod
    def of(message: Message) -> BatchLayout:
        calls = [[Slot(*slot) for slot in call] for call in message["calls"]]
        return BatchLayout(**{**message, "calls": calls})

    def as_json(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def places(self) -> list[tuple[int, int, int]]:
        """Return the size, the slack and the base (0: anywhere) of each region."""
        bases = self.bases or [0] * len(self.region_bytes)
        return list(zip(self.region_bytes, self.slack_pages, bases, strict=True))

    def answers(self, call: int) -> list[Slot]:
        """Return the slots of a call's answers: tensors that it changes, then outputs."""
        slots, count = self.calls[call], self.input_count
        return [*(slot for slot in slots[:count] if slot.region == IN_PLACE), *slots[count:]]


def span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements from the first to the last of a tensor, gaps included."""
    if 0 in size:
        return 0
    return 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
