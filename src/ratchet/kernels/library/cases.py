"""Cases that several problems of the library share. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratchet.kernels.problem import Case, Problem, TensorSpec

DISTRIBUTIONS: Final = ("shifted", "heavy_tailed", "outliers", "zeros", "tiny", "large")
"""Beside `normal`, which the timed case has."""

Inputs = Callable[[str, bool], Sequence[TensorSpec]]
"""(distribution, ragged) -> the inputs; ragged sizes fill no vector and no thread evenly."""


def standard_cases(inputs: Inputs, scalars: tuple[float, ...] = ()) -> tuple[Case, ...]:
    """The timed case, one small ragged case for each distribution, and a hidden one."""
    timed = Case(name="timed", inputs=tuple(inputs("normal", False)), scalars=scalars, timed=True)
    small = tuple(
        Case(name=name, inputs=tuple(inputs(name, True)), scalars=scalars) for name in DISTRIBUTIONS
    )
    hidden = Case(name="hidden", inputs=tuple(inputs("normal", True)), scalars=scalars, hidden=True)
    return (timed, *small, hidden)


def library_problem(entry: str, cases: Sequence[Case]) -> Problem:
    """The problem of an entry: its reference has the same name in `references`."""
    return Problem(
        name=entry,
        reference=f"ratchet.kernels.library.references:{entry}",
        cases=tuple(cases),
    )
