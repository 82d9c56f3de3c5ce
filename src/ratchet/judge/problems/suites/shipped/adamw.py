"""AdamW and the norm of its gradients in plain torch, and the problems of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Scalars, wide
from ratchet.judge.problems.suites.shipped import WorkloadShapes, problem_of

ENTRIES: Final = {"adamw": ("gradient_square_sum", "adamw_step")}
SCALARS: Final = (1e-3, 0.9, 0.95, 1e-8, 0.1, 3.0, 0.5, 1.0)


def gradient_square_sum(*tensors_and_scalars: Tensor | Scalars) -> tuple[Tensor, ...]:
    """The sum of the squares of all elements, [1]; fp32 (fp64 for fp64 gradients)."""
    gradients = [one for one in tensors_and_scalars if isinstance(one, Tensor)]
    return (torch.stack([wide(one).square().sum() for one in gradients]).sum().reshape(1),)


def adamw_step(*tensors_and_scalars: Tensor | Scalars) -> tuple[Tensor, ...]:
    """New values of [grad, exp_avg, exp_avg_sq, weight, copy], five for each parameter.

    scalars: lr, beta1, beta2, eps, weight_decay, step, coefficient, zero (arXiv:1711.05101,
    algorithm 2, in the order of torch.optim.AdamW).
    """
    tensors = [one for one in tensors_and_scalars if isinstance(one, Tensor)]
    scalars = tensors_and_scalars[-1]
    assert not isinstance(scalars, Tensor)
    changed: list[Tensor] = []
    for first in range(0, len(tensors), 5):
        changed += _adamw_one(tensors[first : first + 5], scalars)
    return tuple(changed)


def _adamw_one(tensors: Sequence[Tensor], scalars: Scalars) -> list[Tensor]:
    grad, exp_avg, exp_avg_sq, weight, copy = tensors
    lr, beta1, beta2, eps, decay, step, coefficient, zero = scalars
    scaled = wide(grad) * coefficient
    first = torch.lerp(exp_avg, scaled, 1 - beta1)
    second = exp_avg_sq * beta2 + (1 - beta2) * scaled.square()
    root = (1 - beta2**step) ** 0.5
    moved = wide(weight) * (1 - lr * decay)
    moved = moved - lr / (1 - beta1**step) * (first / (second.sqrt() / root + eps))
    rest = torch.zeros_like(grad) if zero else grad
    rounded = copy if copy.numel() == 0 else moved.to(copy.dtype)
    return [rest, first, second, moved.to(weight.dtype), rounded]


def adamw_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return the norm over a few gradients, and the update with and without a bf16 copy."""
    norm_cases = [
        Case(name=name, inputs=_gradients(shapes, name, timed), timed=timed, hidden=name == "tiny")
        for name, timed in (("normal", True), ("outliers", False), ("tiny", False))
    ]
    return (
        problem_of(__name__, "gradient_square_sum", norm_cases),
        problem_of(__name__, "adamw_step", _update_cases(shapes)),
    )


def _gradients(shapes: WorkloadShapes, distribution: str, timed: bool) -> tuple[TensorSpec, ...]:
    wanted = shapes.parameters if timed else ((77, 13), (5,))
    return tuple(
        TensorSpec(shape=shape, dtype="float32", distribution=distribution) for shape in wanted
    )


def _update_cases(shapes: WorkloadShapes) -> list[Case]:
    ragged = ((77, 13), (5,))
    cases = [_update_case("fp32", shapes.parameters, "normal", "float32", False, timed=True)]
    cases += [
        _update_case(f"fp32-{name}", ragged, name, "float32", False)
        for name in ("outliers", "zeros", "tiny", "large")
    ]
    cases.append(_update_case("bf16-copy", ragged, "normal", "bfloat16", True))
    cases.append(_update_case("bf16-hidden", ragged, "heavy_tailed", "float32", True, hidden=True))
    return cases


def _update_case(
    name: str,
    wanted: tuple[tuple[int, ...], ...],
    distribution: str,
    grad_dtype: str,
    copy: bool,
    *,
    timed: bool = False,
    hidden: bool = False,
) -> Case:
    specs: list[TensorSpec] = []
    for shape in wanted:
        plain = TensorSpec(shape=shape, dtype="float32", in_place=True)
        copied = TensorSpec(shape=shape if copy else (0,), dtype="bfloat16", in_place=True)
        grad = replace(plain, dtype=grad_dtype, distribution=distribution)
        specs += [grad, plain, replace(plain, distribution="positive"), plain, copied]
    return Case(name=name, inputs=tuple(specs), scalars=SCALARS, timed=timed, hidden=hidden)
