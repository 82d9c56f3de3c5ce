"""References that call the C++ kernels that ship: what is then judged is such a kernel twice over.

A worker compiles the source as the sandbox does, and the op calls it. The float64 of the oracle is
computed by the op's composite in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.library import LIBRARY, WorkloadShapes, activate, best_isa, register_ops
from ratchet.kernels.problem import Problem

Scalars = Sequence[float]
SHIPPED = {
    "linear_forward": "linear",
    "linear_dgrad": "linear",
    "attention_forward": "attention",
}
"""Kernels that compute for long on little memory: what the op costs beside them must not show."""
OPS = {"linear_forward": "linear", "attention_forward": "attention"}
"""Names under torch.ops.ratchet, where they are not the entry's."""


def kernel_of(entry: str) -> Kernel:
    """The best variant for this machine of the kernel that ships for an entry."""
    return next(one for one in LIBRARY[SHIPPED[entry]].kernels(best_isa()) if one.entry == entry)


def problem_of(entry: str) -> Problem:
    """The entry's problem at llama-60m's sizes, with its first timed case, and our reference."""
    problems = LIBRARY[SHIPPED[entry]].problems(WorkloadShapes())
    problem = next(one for one in problems if one.name == entry)
    timed = next(case for case in problem.cases if case.timed)
    cases = (timed, *(case for case in problem.cases if not case.timed))
    return replace(problem, reference=f"{__name__}:{entry}", task="any", cases=cases)


@functools.cache
def _ready(entry: str) -> Callable[..., tuple[Tensor, ...]]:
    register_ops()
    kernel = kernel_of(entry)
    activate(kernel, cpp.compile_kernel(kernel))
    found: Callable[..., tuple[Tensor, ...]] = getattr(torch.ops.ratchet, OPS.get(entry, entry))
    return found


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor, _: Scalars) -> tuple[Tensor]:
    return (_ready("linear_forward")(x, weight, bias if bias.numel() else None),)


def linear_dgrad(grad: Tensor, weight: Tensor, _: Scalars) -> tuple[Tensor]:
    return (_ready("linear_dgrad")(grad, weight),)


def attention_forward(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return tuple(_ready("attention_forward")(q, k, v, bool(scalars[0]), scalars[1]))
