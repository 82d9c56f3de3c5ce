"""The library's own problems with cases for each tier; its kernels answer them.

A module holds kernels' references and problems. Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.judge.problems.problem import Case, Problem, TensorSpec, Tier

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
    dtype: str = "bfloat16"  # Dtype of activations
    weight_dtype: str = "float32"  # Dtype of the small weights (norms) as the op receives them
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


Problems = Callable[[WorkloadShapes], tuple[Problem, ...]]
"""Returns the problems of one library kernel at a workload's sizes."""
SHAPES: Final[dict[Tier, WorkloadShapes]] = {
    "ci": WorkloadShapes(
        batch=1,
        sequence=64,
        hidden=64,
        intermediate=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=640,
        parameters=((128, 64), (64,)),
    ),
    "cpu": WorkloadShapes(),
    "gpu": WorkloadShapes(
        batch=4,
        sequence=4096,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
        parameters=((14336, 4096), (4096, 4096), (4096,)),
    ),
}
"""Sizes of a test, of llama-60m, and of an 8 B model."""
