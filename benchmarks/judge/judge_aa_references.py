"""References that call the shipped C++ kernels, so that a kernel is judged against itself.

A worker compiles the source like the sandbox does, and the op calls it. The op's torch composite
computes the oracle's float64 result.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ratchet.base.devices.probe import best_isa
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import LIBRARY, register_ops
from ratchet.judge.kernels.registry import activate
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes

Scalars = Sequence[float]
SHIPPED = {
    "linear_forward": "linear",
    "linear_dgrad": "linear",
    "attention_forward": "attention",
}
"""Kernels that compute long on little memory, so that the op's overhead does not show: calling the
op takes 0.1 to 0.2 ms more than calling the kernel."""
SHAPES, LONG = WorkloadShapes(batch=8), WorkloadShapes(batch=4, sequence=1024)
"""As many tokens each. Attention takes twice as long on the second; on the first it takes 2 to
3 ms with bf16 products, and the op read 1.08x in eight verdicts on two Zen 4 cores."""
OPS = {"linear_forward": "linear", "attention_forward": "attention"}
"""Names under torch.ops.ratchet that differ from the entry's."""
ISA = "RATCHET_AA_ISA"
"""The variable that tells the reference's processes the ISA: each is a fork that would import the
whole of `ratchet.base.devices` to find it, 0.25 s of CPU time a start and ten starts a verdict."""


def kernel_of(entry: str) -> Kernel:
    """Return this machine's best variant of the kernel that ships for an entry."""
    if ISA not in os.environ:
        os.environ[ISA] = best_isa()
    isa = os.environ[ISA]
    return next(one for one in LIBRARY[SHIPPED[entry]].kernels(isa) if one.entry == entry)


def problem_of(entry: str) -> Problem:
    """Return the entry's problem at llama-60m's widths: first timed case, our reference."""
    shapes = LONG if SHIPPED[entry] == "attention" else SHAPES
    problems = LIBRARY[SHIPPED[entry]].problems(shapes)
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
