"""Check that an answer depends on every input: a kernel need not read one without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Reference
from ratchet.judge.problems.tolerance import coded, same_bits

Draw = Callable[[Case, int], list[Tensor]]
FIRST, OTHERS = 5, (6, 7)
"""Number of seeds: an input may be drawn equal once, or change nothing once."""
FIXED: Final = ("zeros", "ones")
"""Distributions that always give the same values."""


def inert_input(
    reference: Reference, cases: Iterable[Case], draw: Draw, *, first: int = 0
) -> int | None:
    """Return the first input from position `first` on that changes no output of any case, or None.

    Tensors that are changed in place are exempt, since they may only be written. An input without
    effect on one case (a factor of zeros) may have one on the next, so cases are drawn until every
    input has shown an effect.
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
    """Return the suspects that drew other values, and those of them that changed an output."""

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
