"""RMSNorm and LayerNorm in Triton, with or without the residual add, forward and backward.

    h = x + residual
    RMSNorm:   y = h / sqrt(mean(h^2) + eps) * weight                (arXiv:1910.07467, equation 4)
    LayerNorm: y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias
                                                                     (arXiv:1607.06450, equation 4)

Rows are fp32 or bf16 of any stride, with at most 16,384 columns; so are weight and bias. Sums are
fp32. A row stays in registers, so each tensor is moved once and the variance takes two passes over
registers. The gradients of weight and bias are summed by each program over its own rows, then over
programs in a fixed order: two runs give the same bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_COLUMNS = 16384
TILE_ELEMENTS = 2048
"""Elements of a program's tile up to which short rows share the program."""
ELEMENTS_PER_LANE = 16
"""Two loads of 128 bits in bf16."""
PROGRAMS_PER_UNIT = 4
"""Programs of the backward: enough waves to keep memory busy, few enough partial sums."""


@triton.jit
def _hat(value, kept, columns, eps, CENTRED: tl.constexpr):
    """The normalised rows and 1 / deviation of each; masked elements must be 0."""
    if CENTRED:
        value = tl.where(kept, value - (tl.sum(value, 1) / columns)[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(value * value, 1) / columns + eps)[:, None]
    return value * inverse, inverse


@triton.jit
def norm_forward_kernel(
    x,
    residual,
    weight,
    bias,
    y,
    h,
    rows,
    columns,
    x_stride,
    residual_stride,
    eps,
    CENTRED: tl.constexpr,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    kept = (row < rows - first) & (at < columns)
    value = tl.load(x + first * x_stride + (row * x_stride + at), kept, 0.0).to(tl.float32)
    if ADD:
        place = residual + first * residual_stride + (row * residual_stride + at)
        value += tl.load(place, kept, 0.0).to(tl.float32)
        rounded = value.to(h.dtype.element_ty)
        tl.store(h + first * columns + (row * columns + at), rounded, kept)
        value = rounded.to(tl.float32)
    hat, _ = _hat(value, kept, columns, eps, CENTRED)
    result = hat * tl.load(weight + at, at < columns, 0.0).to(tl.float32)
    if BIAS:
        result += tl.load(bias + at, at < columns, 0.0).to(tl.float32)
    tl.store(y + first * columns + (row * columns + at), result.to(y.dtype.element_ty), kept)


@triton.jit
def norm_backward_kernel(
    grad,
    grad_h,
    h,
    weight,
    dh,
    partial,
    rows,
    columns,
    grad_stride,
    grad_h_stride,
    h_stride,
    rows_each,
    eps,
    CENTRED: tl.constexpr,
    THROUGH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Partial sums: [programs, C] of dweight, and [programs, 2 C] with dbias if CENTRED."""
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    scale = tl.load(weight + at, at < columns, 0.0).to(tl.float32)
    dweight = tl.zeros((ROWS, BLOCK), tl.float32)
    if CENTRED:
        dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    first = tl.program_id(0) * rows_each
    for start in range(first, min(first + rows_each, rows), ROWS):
        kept = (row < min(first + rows_each, rows) - start) & (at < columns)
        base = tl.cast(start, tl.int64)
        value = tl.load(h + base * h_stride + (row * h_stride + at), kept, 0.0).to(tl.float32)
        dy = tl.load(grad + base * grad_stride + (row * grad_stride + at), kept, 0.0)
        dy = dy.to(tl.float32)
        hat, inverse = _hat(value, kept, columns, eps, CENTRED)
        scaled = dy * scale
        inner = scaled - hat * (tl.sum(scaled * hat, 1) / columns)[:, None]
        if CENTRED:
            inner -= (tl.sum(scaled, 1) / columns)[:, None]
            dbias += dy
        inner *= inverse
        if THROUGH:
            place = grad_h + base * grad_h_stride + (row * grad_h_stride + at)
            inner += tl.load(place, kept, 0.0).to(tl.float32)
        place = dh + base * columns + (row * columns + at)
        tl.store(place, inner.to(dh.dtype.element_ty), kept)
        dweight += dy * hat
    own = partial + tl.program_id(0).to(tl.int64) * columns
    if CENTRED:
        own += tl.program_id(0).to(tl.int64) * columns
        tl.store(own + columns + at, tl.sum(dbias, 0, keep_dims=True), at < columns)
    tl.store(own + at, tl.sum(dweight, 0, keep_dims=True), at < columns)


@triton.jit
def column_sum_kernel(partial, out, count, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[c] = sum over rows of partial [count, columns]."""
    row = tl.arange(0, ROWS)[:, None]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, count, ROWS):
        place = partial + tl.cast(start, tl.int64) * columns + (row * columns + at[None, :])
        sums += tl.load(place, (row < count - start) & (at < columns)[None, :], 0.0)
    tl.store(out + at, tl.sum(sums, 0).to(out.dtype.element_ty), at < columns)


def _rows(tensor: Tensor) -> Tensor:
    """Return [..., C] as [R, C] with contiguous columns, without a copy if the strides allow it."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def _tile(columns: int) -> dict[str, int]:
    """Return rows and columns of a program's tile, and its warps."""
    if columns > MAX_COLUMNS:
        raise ValueError(f"rows have {columns} columns: give at most {MAX_COLUMNS}")
    block = triton.next_power_of_2(columns)
    rows = max(1, TILE_ELEMENTS // block)
    lanes = triton.runtime.driver.active.get_current_target().warp_size
    warps = max(1, min(1024 // lanes, rows * block // (ELEMENTS_PER_LANE * lanes)))
    return {"ROWS": rows, "BLOCK": block, "num_warps": warps}


def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (y, h). Without a bias it is RMSNorm; an empty one stands for LayerNorm without it."""
    flat = _rows(x)
    other = flat if residual is None else _rows(residual)
    dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    h = y if residual is None else torch.empty_like(y)
    rows, columns = flat.shape
    tile = _tile(columns)
    added = None if bias is None else _given(bias)
    norm_forward_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
        flat,
        other,
        weight.contiguous(),
        weight if added is None else added.contiguous(),
        y,
        h,
        rows,
        columns,
        flat.stride(0),
        other.stride(0),
        eps,
        CENTRED=bias is not None,
        ADD=residual is not None,
        BIAS=added is not None,
        **tile,
    )
    return y, h


def _backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, eps: float, *, centred: bool
) -> tuple[Tensor, ...]:
    """Return (dh, dweight), and dbias if `centred`."""
    flat, dy = _rows(h), _rows(grad)
    through = dy if grad_h is None else _rows(grad_h)
    dh = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    rows, columns = flat.shape
    tile = _tile(columns)
    programs = max(1, min(_programs(h), triton.cdiv(rows, tile["ROWS"])))
    parts = 2 if centred else 1
    partial = torch.empty((programs, parts * columns), dtype=torch.float32, device=h.device)
    norm_backward_kernel[(programs,)](
        dy,
        through,
        flat,
        weight.contiguous(),
        dh,
        partial,
        rows,
        columns,
        dy.stride(0),
        through.stride(0),
        flat.stride(0),
        triton.cdiv(rows, programs),
        eps,
        CENTRED=centred,
        THROUGH=grad_h is not None,
        **tile,
    )
    sums = torch.empty((parts, columns), dtype=weight.dtype, device=h.device)
    column_sum_kernel[(triton.cdiv(parts * columns, 64),)](
        partial, sums, programs, parts * columns, ROWS=64, BLOCK=64, num_warps=4
    )
    return dh, *sums


def _programs(tensor: Tensor) -> int:
    """Return the number of programs that share the rows of a backward."""
    if not tensor.is_cuda:
        return PROGRAMS_PER_UNIT
    properties = torch.cuda.get_device_properties(tensor.device)
    return int(properties.multi_processor_count) * PROGRAMS_PER_UNIT


def _given(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.numel() else None


def rms_norm_forward(x: Tensor, weight: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """y of x [..., C] and weight [C]; `scalars` is (eps,)."""
    return (_forward(x, None, weight, None, scalars[0])[0],)


def add_rms_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(y, h) where h = x + residual, rounded to their dtype."""
    return _forward(x, residual, weight, None, scalars[0])


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """(dx, dweight) for the gradient of y."""
    return _backward(grad, None, x, weight, scalars[0], centred=False)


def add_rms_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """(dh, dweight); grad_h is the gradient that reaches h directly, empty if there is none."""
    return _backward(grad, _given(grad_h), h, weight, scalars[0], centred=False)


def layer_norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Sequence[float]
) -> tuple[Tensor]:
    """y of x [..., C], weight [C] and bias [C], which may be empty; `scalars` is (eps,)."""
    return (_forward(x, None, weight, bias, scalars[0])[0],)


def add_layer_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(y, h) where h = x + residual, rounded to their dtype."""
    return _forward(x, residual, weight, bias, scalars[0])


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """(dx, dweight, dbias) for the gradient of y."""
    return _backward(grad, None, x, weight, scalars[0], centred=True)


def add_layer_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """(dh, dweight, dbias); an empty grad_h stands for none."""
    return _backward(grad, _given(grad_h), h, weight, scalars[0], centred=True)
