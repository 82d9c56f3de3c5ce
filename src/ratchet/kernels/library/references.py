"""The library's ops in plain torch: the oracle in float64, and the fallback.

Every function takes its tensors in the order of the C interface and a tuple of scalars, computes in
float32 (in float64 for float64 inputs) and returns a tuple of outputs in the dtypes of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

Scalars = Sequence[float]

KINDS: Final = ("silu", "gelu", "gelu_tanh")
"""Activations of `gated_activation`, by their code on the C interface."""


def wide(tensor: Tensor) -> Tensor:
    """Return `tensor` in the precision of sums."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


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
