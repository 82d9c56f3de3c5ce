"""The rotary position embedding in plain torch, and the problems of its kernels."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.precision import wide
from ratchet.judge.problems.suites.scalars import Scalars
from ratchet.judge.problems.suites.shipped import HOMES
from ratchet.judge.problems.suites.shipped.cases import WorkloadShapes, problem_of, standard_cases

ENTRIES: Final = HOMES["rope"].entries


def _trigonometric(table: Tensor) -> Tensor:
    """[T, D] or [B, T, D] -> a shape that broadcasts over [B, H, T, D]."""
    return wide(table).unsqueeze(-3)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rope_forward(x: Tensor, cos: Tensor, sin: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    value = wide(x)
    y = value * _trigonometric(cos) + _rotate_half(value) * _trigonometric(sin)
    return (y.to(x.dtype),)


def rope_backward(grad: Tensor, cos: Tensor, sin: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The transpose of `rope_forward`: rotate_half's transpose is its negative."""
    value = wide(grad)
    dx = value * _trigonometric(cos) - _rotate_half(value * _trigonometric(sin))
    return (dx.to(grad.dtype),)


def rope_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's heads and sequence."""

    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        batch, heads, length, size = (
            (3, 2, 5, 10)
            if ragged
            else (shapes.batch, shapes.heads, shapes.sequence, shapes.head_dim)
        )
        layout = "contiguous" if distribution in ("zeros", "tiny") else "heads"
        x = TensorSpec(
            shape=(batch, heads, length, size),
            dtype=shapes.dtype,
            distribution=distribution,
            layout=layout,
        )
        shape = (batch, length, size) if distribution == "large" else (length, size)
        table = TensorSpec(
            shape=shape, dtype=shapes.dtype, distribution="uniform", low=-1.0, high=1.0
        )
        return [x, table, table]

    return tuple(problem_of(__name__, entry, standard_cases(inputs)) for entry in ENTRIES)
