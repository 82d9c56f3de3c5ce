"""Rotary position embedding in Triton: y = x * cos + rotate_half(x) * sin, forward and backward.

x is [B, H, T, D] of any strides with contiguous features, cos and sin are [T, D] or [B, T, D], in
Hugging Face's convention of halves (arXiv:2104.09864, section 3.4.2). A program reads the tables of
its positions once and rotates every head with them; arithmetic is fp32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ELEMENTS = 2048
"""Elements of one half of a program's positions."""
HEADS_AT_ONCE = 8
"""Heads per program: enough to pay for the tables, few enough for programs to fill the GPU."""


@triton.jit
def rope_kernel(
    x,
    cos,
    sin,
    y,
    heads,
    length,
    half,
    x_batch,
    x_head,
    x_row,
    cos_batch,
    cos_row,
    sin_batch,
    sin_row,
    y_batch,
    y_head,
    y_row,
    BACKWARD: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Grid: (blocks of positions, groups of heads, batch)."""
    start = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    kept = (row < length - start) & (at < half)
    cos += batch * cos_batch + start * cos_row
    sin += batch * sin_batch + start * sin_row
    cos_first = tl.load(cos + (row * cos_row + at), kept, 0.0).to(tl.float32)
    cos_second = tl.load(cos + half + (row * cos_row + at), kept, 0.0).to(tl.float32)
    sin_first = tl.load(sin + (row * sin_row + at), kept, 0.0).to(tl.float32)
    sin_second = tl.load(sin + half + (row * sin_row + at), kept, 0.0).to(tl.float32)
    if BACKWARD:  # the transpose of the rotation
        sin_first, sin_second = -sin_second, -sin_first
    x += batch * x_batch + start * x_row
    y += batch * y_batch + start * y_row
    group = tl.program_id(1) * HEADS
    for head in range(group, min(group + HEADS, heads)):
        source = x + tl.cast(head, tl.int64) * x_head
        first = tl.load(source + (row * x_row + at), kept, 0.0).to(tl.float32)
        second = tl.load(source + half + (row * x_row + at), kept, 0.0).to(tl.float32)
        turned_first = first * cos_first - second * sin_first
        turned_second = second * cos_second + first * sin_second
        target = y + tl.cast(head, tl.int64) * y_head
        tl.store(target + (row * y_row + at), turned_first.to(y.dtype.element_ty), kept)
        tl.store(target + half + (row * y_row + at), turned_second.to(y.dtype.element_ty), kept)


def _features_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _turn(x: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> Tensor:
    x, cos, sin = _features_last(x), _features_last(cos), _features_last(sin)
    y = _features_last(torch.empty_like(x))  # dense; with x's layout if x is dense
    batch, heads, length, features = x.shape
    half = features // 2
    block = triton.next_power_of_2(half)
    rows = min(max(1, TILE_ELEMENTS // block), triton.next_power_of_2(length))
    grid = (triton.cdiv(length, rows), triton.cdiv(heads, HEADS_AT_ONCE), batch)
    rope_kernel[grid](
        x,
        cos,
        sin,
        y,
        heads,
        length,
        half,
        *x.stride()[:3],
        cos.stride(0) if cos.dim() == 3 else 0,
        cos.stride(-2),
        sin.stride(0) if sin.dim() == 3 else 0,
        sin.stride(-2),
        *y.stride()[:3],
        BACKWARD=backward,
        HEADS=HEADS_AT_ONCE,
        ROWS=rows,
        HALF=block,
        num_warps=4,
    )
    return y


def rope_forward(x: Tensor, cos: Tensor, sin: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """x rotated by the angles of its positions; there are no scalars."""
    return (_turn(x, cos, sin, False),)


def rope_backward(
    grad: Tensor, cos: Tensor, sin: Tensor, scalars: Sequence[float]
) -> tuple[Tensor]:
    """The gradient of x; cos and sin have none."""
    return (_turn(grad, cos, sin, True),)
