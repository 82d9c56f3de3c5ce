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


Problems = Callable[[WorkloadShapes], tuple[Problem, ...]]
"""Returns the problems of one library kernel at a workload's sizes."""
_NORM_FORMS: Final = ("{}_forward", "{}_backward", "add_{}_forward", "add_{}_backward")
KERNELS: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("attention_forward", "attention_backward"),
    "linear_cross_entropy": ("linear_cross_entropy", "cross_entropy_rows"),
    "adamw": ("gradient_square_sum", "adamw_step"),
    "gated_activation": ("gated_activation_forward", "gated_activation_backward"),
    "rms_norm": tuple(form.format("rms_norm") for form in _NORM_FORMS),
    "layer_norm": tuple(form.format("layer_norm") for form in _NORM_FORMS),
    "rope": ("rope_forward", "rope_backward"),
    "linear": ("linear_forward", "linear_dgrad", "linear_wgrad"),
}
"""The library's kernels by name, in the order in which to try them, and the entries: the names
of their problems, which their ops and their sources have too."""
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
