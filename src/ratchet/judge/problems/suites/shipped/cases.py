"""Sizes of a workload, and cases that several of the library's problems share. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.judge.problems.problem import Case, Problem, TensorSpec

DISTRIBUTIONS: Final = ("shifted", "heavy_tailed", "outliers", "zeros", "tiny", "large")
"""Distributions of the small cases; the timed case has `normal`."""

Inputs = Callable[[str, bool], Sequence[TensorSpec]]
"""(distribution, ragged) -> the inputs; ragged sizes fill no vector and no thread evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadShapes:
    """Sizes of a transformer's step; the defaults are llama-60m's."""

    batch: int = 2
    sequence: int = 512
    hidden: int = 512
    intermediate: int = 2048
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    vocabulary: int = 32000
    dtype: str = "bfloat16"
    """Dtype of activations."""
    weight_dtype: str = "float32"
    """Dtype of the small weights (norms) as the op receives them."""
    parameters: tuple[tuple[int, ...], ...] = ((2048, 512), (512, 2048), (512, 512), (512,))
    """Shapes of typical parameters that the optimizer updates."""

    @property
    def tokens(self) -> int:
        """Number of rows of the activations."""
        return self.batch * self.sequence


def standard_cases(inputs: Inputs, scalars: tuple[float, ...] = ()) -> tuple[Case, ...]:
    """Return the timed case, one small ragged case per distribution, and a hidden one."""
    timed = Case(name="timed", inputs=tuple(inputs("normal", False)), scalars=scalars, timed=True)
    small = tuple(
        Case(name=name, inputs=tuple(inputs(name, True)), scalars=scalars) for name in DISTRIBUTIONS
    )
    hidden = Case(name="hidden", inputs=tuple(inputs("normal", True)), scalars=scalars, hidden=True)
    return (timed, *small, hidden)


def problem_of(module: str, entry: str, cases: Sequence[Case]) -> Problem:
    """Return an entry's problem; its reference is the function of that name in `module`."""
    return Problem(name=entry, reference=f"{module}:{entry}", cases=tuple(cases))
