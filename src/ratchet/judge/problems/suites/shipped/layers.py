"""RMSNorm and LayerNorm in plain torch, and the problems of their kernels.

As in all of these files, a reference takes its tensors in the order of the C interface and a tuple
of scalars, computes in float32 (in float64 for float64 inputs) and returns a tuple of outputs in
the dtypes of the inputs. It is the judge's oracle in float64, and the op's fallback.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Scalars, wide
from ratchet.judge.problems.suites.shipped import (
    WorkloadShapes,
    problem_of,
    standard_cases,
)

ENTRIES: Final = {
    "rms_norm": (
        "rms_norm_forward",
        "rms_norm_backward",
        "add_rms_norm_forward",
        "add_rms_norm_backward",
    ),
    "layer_norm": (
        "layer_norm_forward",
        "layer_norm_backward",
        "add_layer_norm_forward",
        "add_layer_norm_backward",
    ),
    "gated_activation": ("gated_activation_forward", "gated_activation_backward"),
    "rope": ("rope_forward", "rope_backward"),
}


def _hat(x: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    if centred:
        x = x - x.mean(-1, keepdim=True)
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * inverse, inverse


def norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype, centred: bool
) -> Tensor:
    """RMSNorm (arXiv:1910.07467) or, `centred`, LayerNorm (arXiv:1607.06450) of the last dim.

    The result is contiguous for any layout of `x`, as the ops promise.
    """
    hat, _ = _hat(wide(x), eps, centred)
    y = hat * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    return y.to(dtype).contiguous()


def norm_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `norm` in h, weight and bias; `grad_h` is the one that reaches h directly."""
    dy = wide(grad)
    hat, inverse = _hat(wide(h), eps, centred)
    scaled = dy * wide(weight)
    inner = scaled - hat * (scaled * hat).mean(-1, keepdim=True)
    if centred:
        inner = inner - scaled.mean(-1, keepdim=True)
    dh = inner * inverse
    if grad_h is not None:
        dh = dh + wide(grad_h)
    leading = tuple(range(h.dim() - 1))
    dweight = (dy * hat).sum(leading) if leading else dy * hat
    dbias = dy.sum(leading) if leading else dy
    return dh.to(h.dtype).contiguous(), dweight.to(weight.dtype), dbias


def rms_norm_forward(x: Tensor, weight: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (norm(x, weight, None, scalars[0], x.dtype, False),)


def add_rms_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    h = x + residual
    return norm(h, weight, None, scalars[0], h.dtype, False), h


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return norm_backward(grad, None, x, weight, scalars[0], False)[:2]


def add_rms_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return norm_backward(grad, _optional(grad_h), h, weight, scalars[0], False)[:2]


def layer_norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return (norm(x, weight, _optional(bias), scalars[0], x.dtype, True),)


def add_layer_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    h = x + residual
    return norm(h, weight, _optional(bias), scalars[0], h.dtype, True), h


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    dx, dweight, dbias = norm_backward(grad, None, x, weight, scalars[0], True)
    return dx, dweight, dbias.to(weight.dtype)


def add_layer_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    dh, dweight, dbias = norm_backward(grad, _optional(grad_h), h, weight, scalars[0], True)
    return dh, dweight, dbias.to(weight.dtype)


def _optional(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.numel() > 0 else None


def rms_norm_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return tuple(_problem(shapes, entry, 1e-6, bias=False) for entry in ENTRIES["rms_norm"])


def layer_norm_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return tuple(_problem(shapes, entry, 1e-5, bias=True) for entry in ENTRIES["layer_norm"])


def _problem(shapes: WorkloadShapes, entry: str, eps: float, *, bias: bool) -> Problem:
    forward = entry.endswith("forward")
    row_count = (1 if forward else 2) + entry.startswith("add")

    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        shape = (13, 77) if ragged else (shapes.tokens, shapes.hidden)
        layout = "strided" if distribution == "shifted" else "contiguous"
        rows = TensorSpec(shape=shape, dtype=shapes.dtype, distribution=distribution, layout=layout)
        vector = TensorSpec(shape=shape[-1:], dtype=shapes.weight_dtype)
        return [rows] * row_count + [vector] * (1 + (bias and forward))

    return problem_of(__name__, entry, standard_cases(inputs, (eps,)))


# SwiGLU's and GeGLU's gate in plain torch, and the problems of its kernels.

KINDS: Final = ("silu", "gelu", "gelu_tanh")  # Activations, by their code on the C interface


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
        for entry, count in zip(ENTRIES["gated_activation"], (2, 3), strict=True)
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


# The rotary position embedding in plain torch, and the problems of its kernels.


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

    return tuple(problem_of(__name__, entry, standard_cases(inputs)) for entry in ENTRIES["rope"])
