"""Whether an answer depends on all that it is given: a kernel need not read what has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from ratchet.kernels.problem import Case, Reference
from ratchet.kernels.tolerance import coded, same_bits

Draw = Callable[[Case, int], list[Tensor]]
FIRST, OTHERS = 5, (6, 7)
"""Seeds: an input may come out the same once, or change nothing once."""
FIXED: Final = ("zeros", "ones")
"""Distributions that give the same values each time."""


def inert_input(
    reference: Reference, cases: Iterable[Case], draw: Draw, *, first: int = 0
) -> int | None:
    """The first input from position `first` on that changes no output of any case, or None.

    A tensor that is changed in place may be one that is only written. What has no effect on one
    case (a factor of zeros) may have one on the next; a case is only drawn while there are inputs
    that have shown none.
    """
    suspects: set[int] | None = None
    tried: set[int] = set()
    for case in cases:
        if suspects is None:
            rest = enumerate(case.inputs[first:], first)
            suspects = {index for index, spec in rest if not spec.in_place}
        if any(case.inputs[index].distribution not in FIXED for index in suspects):
            varied, effective = _effects(reference, case, draw, suspects)
            tried |= varied
            suspects -= effective
    return min((suspects or set()) & tried, default=None)


def _effects(
    reference: Reference, case: Case, draw: Draw, suspects: set[int]
) -> tuple[set[int], set[int]]:
    """Of the suspects, those that came out otherwise, and those of them that changed an output."""

    def outputs(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [one.clone() for one in reference(*(t.clone() for t in tensors), case.scalars)]

    start = draw(case, FIRST)
    before = outputs(start)
    varied: set[int] = set()
    effective: set[int] = set()
    for seed in OTHERS:
        if suspects <= effective:
            break
        others = draw(case, seed)
        for index in sorted(suspects - effective):
            if _same(others[index], start[index]):
                continue
            varied.add(index)
            after = outputs([*start[:index], others[index], *start[index + 1 :]])
            if len(before) != len(after) or not all(map(_same, before, after)):
                effective.add(index)
    return varied, effective


def _same(one: Tensor, other: Tensor) -> bool:
    if coded(one.dtype):
        return same_bits(one, other)
    return torch.equal(one.nan_to_num(), other.nan_to_num())
