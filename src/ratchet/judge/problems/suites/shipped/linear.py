"""The three products of a linear layer in plain torch, and the problems of their kernels."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.scalars import Scalars
from ratchet.judge.problems.suites.shipped import HOMES
from ratchet.judge.problems.suites.shipped.cases import (
    Inputs,
    WorkloadShapes,
    problem_of,
    standard_cases,
)

ENTRIES: Final = HOMES["linear"].entries


def _half(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.bfloat16()


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars = ()
) -> tuple[Tensor, ...]:
    """Compute the entry's reference: y in bf16 (float64 for float64 inputs)."""
    added = _half(bias) if bias.numel() > 0 else None
    return (torch.nn.functional.linear(_half(x), _half(weight), added),)


def linear_dgrad(grad: Tensor, weight: Tensor, scalars: Scalars = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dx in bf16 (float64 for float64 inputs)."""
    return (_half(grad) @ _half(weight),)


def linear_wgrad(grad: Tensor, x: Tensor, scalars: Scalars = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dweight and dbias in bf16 (float64 for float64 inputs)."""
    half = _half(grad)
    total = half.sum(0, dtype=torch.float32 if half.dtype == torch.bfloat16 else half.dtype)
    return half.t() @ _half(x), _half(total)


def linear_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the size of the feed-forward up projection."""
    return tuple(
        problem_of(__name__, entry, standard_cases(_inputs(shapes, entry))) for entry in ENTRIES
    )


def _inputs(shapes: WorkloadShapes, entry: str) -> Inputs:
    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        rows, inner, outer = (37, 45, 83) if ragged else (shapes.tokens, shapes.hidden, 0)
        outer = outer or shapes.intermediate
        layout = "transposed" if distribution == "shifted" else "contiguous"
        sizes = {
            "linear_forward": ((rows, inner), (outer, inner)),
            "linear_dgrad": ((rows, outer), (outer, inner)),
            "linear_wgrad": ((rows, outer), (rows, inner)),
        }[entry]
        first = TensorSpec(
            shape=sizes[0], dtype=shapes.dtype, distribution=distribution, layout=layout
        )
        second = TensorSpec(shape=sizes[1], dtype=shapes.dtype)
        bias = TensorSpec(shape=(outer if ragged else 0,), dtype=shapes.dtype)
        return [first, second, bias] if entry == "linear_forward" else [first, second]

    return inputs
