"""Check that a problem fits in free memory, from its sizes, before anything is drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ratchet.base.errors import KernelError
from ratchet.base.process.memory import free_bytes

if TYPE_CHECKING:
    from ratchet.judge.problems.problem import Case, Problem

MEMORY_SHARE: Final = 0.5  # Usable share of the free memory: a candidate's processes need the rest
COPIES: Final = 4.0
"""Copies of a call's tensors held at once: inputs, their copies, outputs, float64."""
WIDE_BYTES: Final = 8  # Bytes per element in the oracle's float64
GIB: Final = 2.0**30


def check_fits(problem: Problem) -> None:
    """Raise a KernelError if the inputs of a problem's largest case do not fit this machine."""
    if not problem.cases:
        return
    case = max(problem.cases, key=_elements)
    remedy = "judge it at a smaller tier (--tier ci), or give it smaller cases"
    if problem.model is not None:
        remedy = "shrink it with --scale"
    check_room(COPIES * WIDE_BYTES * _elements(case), remedy, case=case.name)


def check_room(needed: float, remedy: str, *, case: str = "") -> None:
    """Raise a KernelError if this many bytes exceed the usable share of free memory."""
    usable = MEMORY_SHARE * free_bytes()
    if needed > usable:
        where = f"case {case!r} needs" if case else "it needs"
        raise KernelError(
            f"it is too large for this machine: {where} about {needed / GIB:.1f} GiB and "
            f"{usable / GIB:.1f} GiB may be used; {remedy}"
        )


def _elements(case: Case) -> int:
    return sum(math.prod(spec.shape) for spec in case.inputs)
