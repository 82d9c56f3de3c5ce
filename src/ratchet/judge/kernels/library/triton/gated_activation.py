"""The gate of SwiGLU and GeGLU in Triton: y = act(gate) * up, forward and backward.

act is SiLU, GELU or GELU's tanh approximation (arXiv:2002.05202, arXiv:1606.08415). gate and up are
fp32 or bf16 of any row stride, so both may be halves of one product's output; arithmetic is fp32.
The backward needs only gate and up.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_LANE = 8
"""One load of 128 bits in bf16."""
WARPS = 4


@triton.jit
def _share(x, KIND: tl.constexpr):
    """The factor of x in the activation: act(x) = x * share(x)."""
    if KIND == 0:
        result = tl.sigmoid(x)
    elif KIND == 1:
        result = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    else:  # 0.5 * (1 + tanh u) = sigmoid(2 u)
        result = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    return result


@triton.jit
def _slope(x, share, KIND: tl.constexpr):
    """The derivative of the activation."""
    if KIND == 0:
        result = share * (1.0 + x * (1.0 - share))
    elif KIND == 1:
        result = share + x * (tl.exp(-0.5 * x * x) * 0.3989422804014327)
    else:
        rise = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        result = share * (1.0 + x * (1.0 - share) * rise)
    return result


@triton.jit
def gated_activation_forward_kernel(
    gate, up, y, columns, gate_stride, up_stride, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    blocks = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    kept = at < columns - start
    x = tl.load(gate + (row * gate_stride + start) + at, kept, 0.0).to(tl.float32)
    other = tl.load(up + (row * up_stride + start) + at, kept, 0.0).to(tl.float32)
    result = x * _share(x, KIND) * other
    tl.store(y + (row * columns + start) + at, result.to(y.dtype.element_ty), kept)


@triton.jit
def gated_activation_backward_kernel(
    grad,
    gate,
    up,
    dgate,
    dup,
    columns,
    grad_stride,
    gate_stride,
    up_stride,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(columns, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    kept = at < columns - start
    dy = tl.load(grad + (row * grad_stride + start) + at, kept, 0.0).to(tl.float32)
    x = tl.load(gate + (row * gate_stride + start) + at, kept, 0.0).to(tl.float32)
    other = tl.load(up + (row * up_stride + start) + at, kept, 0.0).to(tl.float32)
    out = (row * columns + start) + at
    share = _share(x, KIND)
    tl.store(dgate + out, (dy * other * _slope(x, share, KIND)).to(dgate.dtype.element_ty), kept)
    tl.store(dup + out, (dy * x * share).to(dup.dtype.element_ty), kept)


def _views(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return each [..., C] as [R, C] with contiguous columns; one row if all are contiguous."""
    if all(one.is_contiguous() for one in tensors):
        return [one.view(1, -1) for one in tensors]
    flat = [one.reshape(-1, one.shape[-1]) for one in tensors]
    return [one if one.stride(-1) == 1 else one.contiguous() for one in flat]


def _launch(kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kind: int) -> None:
    views = _views(inputs)
    rows, columns = views[0].shape
    lanes = triton.runtime.driver.active.get_current_target().warp_size
    block = min(WARPS * lanes * ELEMENTS_PER_LANE, max(triton.next_power_of_2(columns), 16))
    strides = [one.stride(0) for one in views]
    kernel[(rows * triton.cdiv(columns, block),)](
        *views, *outputs, columns, *strides, KIND=kind, BLOCK=block, num_warps=WARPS
    )


def gated_activation_forward(gate: Tensor, up: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """act(gate) * up in their common dtype; `scalars` is 0 (SiLU), 1 (GELU) or 2 (tanh)."""
    dtype = torch.promote_types(gate.dtype, up.dtype)
    y = torch.empty(gate.shape, dtype=dtype, device=gate.device)
    _launch(gated_activation_forward_kernel, (gate, up), (y,), int(scalars[0]))
    return (y,)


def gated_activation_backward(
    grad: Tensor, gate: Tensor, up: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(dgate, dup) for the gradient of y."""
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    kernel = gated_activation_backward_kernel
    _launch(kernel, (grad, gate, up), (dgate, dup), int(scalars[0]))
    return dgate, dup
