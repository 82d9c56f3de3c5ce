"""The three products of a linear layer in plain torch, and the problems of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Scalars
from ratchet.judge.problems.suites.shipped import (
    DISTRIBUTIONS,
    Inputs,
    WorkloadShapes,
    problem_of,
    standard_cases,
)

ENTRIES: Final = {
    "linear": ("linear_forward", "linear_dgrad", "linear_wgrad"),
    "linear_cross_entropy": ("linear_cross_entropy", "cross_entropy_rows"),
}


def product_dtype(first: Tensor, second: Tensor) -> torch.dtype:
    """Return the dtype in which two operands are multiplied: their own, bf16 if they differ."""
    return first.dtype if first.dtype == second.dtype else torch.bfloat16


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars = ()
) -> tuple[Tensor, ...]:
    """Compute the entry's reference: y in the product's dtype."""
    dtype = product_dtype(x, weight)
    added = bias.to(dtype) if bias.numel() > 0 else None
    return (torch.nn.functional.linear(x.to(dtype), weight.to(dtype), added),)


def linear_dgrad(grad: Tensor, weight: Tensor, scalars: Scalars = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dx in the product's dtype."""
    dtype = product_dtype(grad, weight)
    return (grad.to(dtype) @ weight.to(dtype),)


def linear_wgrad(grad: Tensor, x: Tensor, scalars: Scalars = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dweight and dbias in the product's dtype."""
    dtype = product_dtype(grad, x)
    own = grad.to(dtype)
    total = own.sum(0, dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
    return own.t() @ x.to(dtype), total.to(dtype)


def linear_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the size of the feed-forward up projection."""
    return tuple(
        problem_of(__name__, entry, standard_cases(_inputs(shapes, entry)))
        for entry in ENTRIES["linear"]
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


# Linear + cross-entropy in plain torch, and the problems of its kernels.

ENTRY, ROWS_ENTRY = ENTRIES["linear_cross_entropy"]
IGNORE_INDEX: Final = -100
ROWS_AT_ONCE: Final = 512
"""Tokens per chunk between torch's products: 32 MB of bf16 logits at a vocabulary of 32,000."""


def loss_of(
    x: Tensor, weight: Tensor, bias: Tensor, target: Tensor, scalars: Sequence[float]
) -> Tensor:
    dtype = torch.bfloat16 if torch.bfloat16 in (x.dtype, weight.dtype) else weight.dtype
    added = bias.to(dtype) if bias.numel() > 0 else None
    logits = torch.nn.functional.linear(x.to(dtype), weight.to(dtype), added)
    return torch.nn.functional.cross_entropy(
        logits if dtype == torch.float64 else logits.float(),
        target,
        ignore_index=int(scalars[0]),
        label_smoothing=scalars[1],
    )


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor, target: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """Compute the entry's reference: loss, dx, dweight, dbias (empty if bias is)."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        loss = loss_of(leaves[0], leaves[1], leaves[2], target, scalars)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
    filled = (
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, found, strict=True)
    )
    return loss.detach(), *filled


def cross_entropy_rows(
    logits: Tensor, target: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """Compute the entry's reference: the summed losses' gradient times scale, and each loss."""
    ignore_index, smoothing, scale = int(scalars[0]), scalars[1], scalars[2]
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        losses = torch.nn.functional.cross_entropy(
            leaf if leaf.dtype == torch.float64 else leaf.float(),
            target,
            ignore_index=ignore_index,
            label_smoothing=smoothing,
            reduction="none",
        )
        (gradient,) = torch.autograd.grad(losses.sum() * scale, leaf)
    return (gradient if scale else logits), losses.detach()


def linear_cross_entropy_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's tokens, hidden size and vocabulary."""
    whole = problem_of(__name__, ENTRY, _whole_cases(shapes))
    return whole, problem_of(__name__, ROWS_ENTRY, _rows_cases(shapes))


def _whole_cases(shapes: WorkloadShapes) -> tuple[Case, ...]:
    def case(
        name: str,
        distribution: str,
        sizes: tuple[int, int, int],
        timed: bool = False,
        hidden: bool = False,
    ) -> Case:
        tokens, width, vocabulary = sizes
        low = IGNORE_INDEX if hidden else 0
        inputs = (
            TensorSpec(shape=(tokens, width), dtype=shapes.dtype, distribution=distribution),
            TensorSpec(shape=(vocabulary, width), dtype=shapes.dtype, distribution="tiny")
            if distribution == "large"
            else TensorSpec(shape=(vocabulary, width), dtype=shapes.dtype),
            TensorSpec(shape=(0 if timed else vocabulary,), dtype=shapes.dtype),
            _targets(tokens, vocabulary),
        )
        scalars = (float(low), 0.0)
        return Case(name=name, inputs=inputs, scalars=scalars, timed=timed, hidden=hidden)

    small, ragged = (61, 33, 997), (43, 65, 130)
    return (
        case("timed", "normal", (shapes.tokens, shapes.hidden, shapes.vocabulary), timed=True),
        *(case(name, name, small) for name in DISTRIBUTIONS),
        case("hidden", "normal", ragged, hidden=True),
    )


def _targets(tokens: int, vocabulary: int) -> TensorSpec:
    high = float(vocabulary)
    return TensorSpec(shape=(tokens,), dtype="int64", distribution="integers", low=0.0, high=high)


def _rows_cases(shapes: WorkloadShapes) -> tuple[Case, ...]:
    def case(
        name: str,
        distribution: str,
        rows: int,
        vocabulary: int,
        timed: bool = False,
        hidden: bool = False,
    ) -> Case:
        logits = TensorSpec(
            shape=(rows, vocabulary), dtype=shapes.dtype, distribution=distribution, in_place=True
        )
        scalars = (3.0, 0.1 if hidden else 0.0, 1.0 / rows)
        inputs = (logits, _targets(rows, vocabulary))
        return Case(name=name, inputs=inputs, scalars=scalars, timed=timed, hidden=hidden)

    rows = min(ROWS_AT_ONCE, shapes.tokens)
    return (
        case("timed", "normal", rows, shapes.vocabulary, timed=True),
        *(case(name, name, 29, 1003) for name in DISTRIBUTIONS),
        case("hidden", "normal", 31, 77, hidden=True),
    )
