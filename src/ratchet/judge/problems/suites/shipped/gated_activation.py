"""SwiGLU's and GeGLU's gate in plain torch, and the problems of its kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites.precision import wide
from ratchet.judge.problems.suites.scalars import Scalars
from ratchet.judge.problems.suites.shipped import HOMES
from ratchet.judge.problems.suites.shipped.cases import WorkloadShapes, problem_of, standard_cases

ENTRIES: Final = HOMES["gated_activation"].entries
KINDS: Final = ("silu", "gelu", "gelu_tanh")
"""Activations, by their code on the C interface."""


def activate(x: Tensor, kind: str) -> Tensor:
    """SiLU, GELU (arXiv:1606.08415) or its tanh approximation."""
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def _through_activation(grad: Tensor, x: Tensor, kind: str) -> Tensor:
    """Multiply a gradient by the derivative of `activate`."""
    rounding = "tanh" if kind == "gelu_tanh" else "none"
    found: Tensor = (
        torch.ops.aten.silu_backward(grad, x)
        if kind == "silu"
        else torch.ops.aten.gelu_backward(grad, x, approximate=rounding)
    )
    return found


def gated_activation_forward(gate: Tensor, up: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    kind = KINDS[int(scalars[0])]
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return ((activate(wide(gate), kind) * wide(up)).to(dtype),)


def gated_activation_backward(
    grad: Tensor, gate: Tensor, up: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    kind = KINDS[int(scalars[0])]
    dy, x = wide(grad), wide(gate)
    dgate = _through_activation(dy * wide(up), x, kind)
    return dgate.to(gate.dtype), (dy * activate(x, kind)).to(up.dtype)


def gated_activation_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, of every kind, at the workload's rows and intermediate size."""
    return tuple(
        problem_of(__name__, entry, [one for kind in KINDS for one in _cases(shapes, count, kind)])
        for entry, count in zip(ENTRIES, (2, 3), strict=True)
    )


def _cases(shapes: WorkloadShapes, tensors: int, kind: str) -> list[Case]:
    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        shape = (13, 77) if ragged else (shapes.tokens, shapes.intermediate)
        layout = "strided" if distribution == "shifted" else "contiguous"
        spec = TensorSpec(shape=shape, dtype=shapes.dtype, distribution=distribution, layout=layout)
        return [spec] * tensors

    return [
        replace(case, name=f"{kind}-{case.name}", timed=case.timed and kind == "silu")
        for case in standard_cases(inputs, (float(KINDS.index(kind)),))
    ]
