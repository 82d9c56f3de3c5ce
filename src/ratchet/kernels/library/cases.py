"""Cases that several problems of the library share. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.problems.problem import Case, Problem, TensorSpec

DISTRIBUTIONS: Final = ("shifted", "heavy_tailed", "outliers", "zeros", "tiny", "large")
"""Distributions of the small cases; the timed case has `normal`."""

Inputs = Callable[[str, bool], Sequence[TensorSpec]]
"""(distribution, ragged) -> the inputs; ragged sizes fill no vector and no thread evenly."""


def standard_cases(inputs: Inputs, scalars: tuple[float, ...] = ()) -> tuple[Case, ...]:
    """Return the timed case, one small ragged case per distribution, and a hidden one."""
    timed = Case(name="timed", inputs=tuple(inputs("normal", False)), scalars=scalars, timed=True)
    small = tuple(
        Case(name=name, inputs=tuple(inputs(name, True)), scalars=scalars) for name in DISTRIBUTIONS
    )
    hidden = Case(name="hidden", inputs=tuple(inputs("normal", True)), scalars=scalars, hidden=True)
    return (timed, *small, hidden)


def library_problem(entry: str, cases: Sequence[Case]) -> Problem:
    """Return an entry's problem; its reference has the same name in `references`."""
    return Problem(
        name=entry,
        reference=f"ratchet.kernels.library.references:{entry}",
        cases=tuple(cases),
    )


def norm_problems(
    shapes: WorkloadShapes, entries: Sequence[str], eps: float, *, bias: bool
) -> tuple[Problem, ...]:
    """Return one problem per entry of a norm, at the workload's rows and hidden size.

    The inputs are row tensors, one more for a backward and one more for the residual add, then the
    weight, and the bias of a forward that has one.
    """

    def problem(entry: str) -> Problem:
        forward = entry.endswith("forward")
        row_count = (1 if forward else 2) + entry.startswith("add")

        def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
            shape = (13, 77) if ragged else (shapes.tokens, shapes.hidden)
            layout = "strided" if distribution == "shifted" else "contiguous"
            rows = TensorSpec(
                shape=shape, dtype=shapes.dtype, distribution=distribution, layout=layout
            )
            vector = TensorSpec(shape=shape[-1:], dtype=shapes.weight_dtype)
            return [rows] * row_count + [vector] * (1 + (bias and forward))

        return library_problem(entry, standard_cases(inputs, (eps,)))

    return tuple(map(problem, entries))
