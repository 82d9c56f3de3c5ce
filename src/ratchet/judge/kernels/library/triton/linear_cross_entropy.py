"""Linear + cross-entropy in Triton without whole logits: the loss and every gradient.

    loss = mean over tokens that count of cross_entropy(x W^T + bias, target)

Tokens come in chunks whose logits fit `LOGITS_BYTES` (arXiv:2410.10989). For each chunk, a product
writes the logits and, for every tile, the maximum and the sum of a row's exponentials
(arXiv:1805.02867). The logits' gradient then overwrites the logits. Two more products give the
gradients of x and of the weight, which is summed over chunks in fp32. This file implements all
three products.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

LOGITS_BYTES = 1 << 30
"""Bytes of one chunk's logits: its products then fill a GPU of 304 compute units."""
ELEMENT_BLOCK = 2048
GROUP = 8
"""Rows of tiles whose programs run together, so that they share columns in cache."""


@triton.jit
def _place(
    rows, columns, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, XCDS: tl.constexpr
):
    """Return the tile (row, column) of this program.

    Consecutive programs run on the XCDs of a GPU in turn, and each XCD has its own L2. Neighbouring
    tiles are assigned to one XCD.
    """
    tiles = tl.cdiv(rows, M) * tl.cdiv(columns, N)
    program = tl.program_id(0)
    if XCDS > 1:
        xcd = program % XCDS
        program = xcd * (tiles // XCDS) + min(xcd, tiles % XCDS) + program // XCDS
    across = GROUP * tl.cdiv(columns, N)
    first = program // across * GROUP
    height = min(tl.cdiv(rows, M) - first, GROUP)
    return first + program % across % height, program % across // height


@triton.jit
def _product(
    a,
    b,
    rows,
    columns,
    depth,
    a_row,
    a_depth,
    b_depth,
    b_column,
    COMPUTE: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Return a tile of a [rows, depth] @ b [depth, columns] in fp32; a, b point at its corner."""
    row = tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    deep = tl.arange(0, K)
    left = row * a_row + deep[None, :] * a_depth
    right = deep[:, None] * b_depth + column * b_column
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, depth, K):
        if EVEN:
            x = tl.load(a + left)
            y = tl.load(b + right)
        else:
            x = tl.load(a + left, (row < rows) & (deep < depth - start)[None, :], 0.0)
            y = tl.load(b + right, (deep < depth - start)[:, None] & (column < columns), 0.0)
        sums = tl.dot(x.to(COMPUTE), y.to(COMPUTE), sums, input_precision="ieee")
        a += tl.cast(a_depth, tl.int64) * K
        b += tl.cast(b_depth, tl.int64) * K
    return sums


@triton.jit
def logits_kernel(
    x,
    weight,
    bias,
    logits,
    tops,
    totals,
    plains,
    rows,
    columns,
    depth,
    x_row,
    weight_row,
    BIAS: tl.constexpr,
    SMOOTH: tl.constexpr,
    COMPUTE: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    XCDS: tl.constexpr,
):
    """logits = x W^T + bias. For each row and tile, also the maximum, the sum of exponentials
    relative to it and, for label smoothing, the plain sum. The statistics are [tiles, rows]."""
    tile_row, tile_column = _place(rows, columns, M, N, GROUP, XCDS)
    first, start = tl.cast(tile_row, tl.int64) * M, tl.cast(tile_column, tl.int64) * N
    x += first * x_row
    weight += start * weight_row
    left, wide = rows - first, columns - start
    sums = _product(x, weight, left, wide, depth, x_row, 1, 1, weight_row, COMPUTE, EVEN, M, N, K)
    row = tl.arange(0, M)
    column = tl.arange(0, N)
    if BIAS:
        sums += tl.load(bias + start + column, column < wide, 0.0).to(tl.float32)[None, :]
    rounded = sums.to(logits.dtype.element_ty)
    kept = (row < left)[:, None] & (column < wide)[None, :]
    out = logits + first * columns + start + (row[:, None] * columns + column[None, :])
    tl.store(out, rounded, kept)
    value = rounded.to(tl.float32)
    bounded = tl.where((column < wide)[None, :], value, -float("inf"))
    top = tl.max(bounded, 1)
    statistic = tl.cast(tile_column, tl.int64) * rows + first + row
    tl.store(tops + statistic, top, row < left)
    tl.store(totals + statistic, tl.sum(tl.exp(bounded - top[:, None]), 1), row < left)
    if SMOOTH:
        plain = tl.sum(tl.where((column < wide)[None, :], value, 0.0), 1)
        tl.store(plains + statistic, plain, row < left)


@triton.jit
def rows_kernel(
    logits,
    target,
    tops,
    totals,
    plains,
    lse,
    losses,
    rows,
    columns,
    tiles,
    ignore_index,
    smoothing,
    SMOOTH: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """lse and the loss of each row from its tiles; 0 for a row that does not count."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    kept = row < rows
    tile = tl.arange(0, TILES)[:, None]
    top = tl.full((TILES, ROWS), -float("inf"), tl.float32)
    total = tl.zeros((TILES, ROWS), tl.float32)
    plain = tl.zeros((TILES, ROWS), tl.float32)
    for start in range(0, tiles, TILES):
        place = (tl.cast(start, tl.int64) + tile) * rows + row[None, :]
        here = (tile < tiles - start) & kept[None, :]
        found = tl.load(tops + place, here, -float("inf"))
        higher = tl.maximum(top, found)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base)
        total += tl.load(totals + place, here, 0.0) * tl.exp(found - base)
        top = higher
        if SMOOTH:
            plain += tl.load(plains + place, here, 0.0)
    highest = tl.max(top, 0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    result = base + tl.log(tl.sum(total * tl.exp(top - base[None, :]), 0))
    tl.store(lse + row, result, kept)
    word = tl.load(target + row, kept, 0)
    counts = kept & (word != ignore_index)
    taken = tl.load(logits + row.to(tl.int64) * columns + word, counts, 0.0).to(tl.float32)
    loss = result - taken
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (result - tl.sum(plain, 0) / columns)
    tl.store(losses + row, tl.where(counts, loss, 0.0), kept)


@triton.jit
def logits_gradient_kernel(
    logits,
    target,
    lse,
    counted,
    columns,
    ignore_index,
    smoothing,
    BLOCK: tl.constexpr,
):
    """Compute in place (softmax - target) / counted; 0 in rows that do not count."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    at = tl.arange(0, BLOCK)
    kept = at < columns - start
    place = logits + row * columns + start + at
    word = tl.load(target + row)
    share = tl.where(word == ignore_index, 0.0, 1.0 / tl.load(counted))
    value = tl.exp(tl.load(place, kept, 0.0).to(tl.float32) - tl.load(lse + row))
    value -= smoothing / columns
    value -= tl.where(at == word - start, 1.0 - smoothing, 0.0)
    tl.store(place, (value * share).to(logits.dtype.element_ty), kept)


@triton.jit
def product_kernel(
    a,
    b,
    total,
    out,
    rows,
    columns,
    depth,
    a_row,
    a_depth,
    b_depth,
    b_column,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    EVEN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    XCDS: tl.constexpr,
):
    """out = a @ b, summed over calls in `total` (fp32) from the FIRST to the LAST."""
    tile_row, tile_column = _place(rows, columns, M, N, GROUP, XCDS)
    first, start = tl.cast(tile_row, tl.int64) * M, tl.cast(tile_column, tl.int64) * N
    a += first * a_row
    b += start * b_column
    left, wide = rows - first, columns - start
    sums = _product(
        a,
        b,
        left,
        wide,
        depth,
        a_row,
        a_depth,
        b_depth,
        b_column,
        COMPUTE,
        EVEN,
        M,
        N,
        K,
    )
    row = tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    kept = (row < left) & (column < wide)
    corner = first * columns + start
    place = row * columns + column
    if not FIRST:
        sums += tl.load(total + corner + place, kept, 0.0)
    if LAST:
        tl.store(out + corner + place, sums.to(out.dtype.element_ty), kept)
    else:
        tl.store(total + corner + place, sums, kept)


@triton.jit
def column_sum_kernel(
    values, total, rows, columns, FIRST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """total[c] = or += the sum over rows of values [rows, columns]."""
    row = tl.arange(0, ROWS)[:, None]
    start = tl.program_id(0) * BLOCK
    at = tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, rows, ROWS):
        place = values + tl.cast(first, tl.int64) * columns + start + (row * columns + at)
        sums += tl.load(place, (row < rows - first) & (at < columns - start), 0.0).to(tl.float32)
    found = tl.sum(sums, 0, keep_dims=True)
    if not FIRST:
        found += tl.load(total + start + at, at < columns - start, 0.0)
    tl.store(total + start + at, found, at < columns - start)


@triton.jit
def count_kernel(target, counted, tokens, ignore_index, BLOCK: tl.constexpr):
    """counted[0] = number of targets that count, at least 1; counted[1] is 0 if there are none."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tokens, BLOCK):
        word = tl.load(target + start + at, at < tokens - start, ignore_index)
        found += (word != ignore_index).to(tl.int32)
    count = tl.sum(found, 0)
    tl.store(counted, tl.maximum(count, 1).to(tl.float32))
    tl.store(counted + 1, count.to(tl.float32))


@triton.jit
def mean_kernel(losses, counted, loss, tokens, BLOCK: tl.constexpr):
    """The sum of the losses over their number; NaN over none, as in torch."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, tokens, BLOCK):
        sums += tl.load(losses + start + at, at < tokens - start, 0.0)
    tl.store(loss, tl.sum(sums, 0) / tl.load(counted + 1))


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _units(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _xcds(arch: str, units: int) -> int:
    """Dies of an MI300 or MI350, each with its own L2: 38 and 32 active compute units."""
    per_die = {"gfx942": 38, "gfx950": 32}.get(arch)
    return max(1, units // per_die) if per_die else 1


def _tile(rows: int, columns: int, depth: int, device: torch.device, adding: bool = False) -> dict:
    """Return a product's tile sizes on this GPU, its warps and its other launch options.

    A tile that is `adding` to an earlier sum needs registers for that sum, too.
    """
    arch = str(triton.runtime.driver.active.get_current_target().arch)
    units = _units(device)
    if min(rows, columns) < 128:
        m, n, k, warps, stages = 64, 64, 32, 4, 2
    elif arch in ("gfx942", "gfx950"):
        m, n, k, warps, stages = 256, 256, 64 if arch == "gfx942" else 32, 8, 2
        if adding:
            n, k = 128, 64
        # Triton 3.7 leaves out a wait for LDS in the larger adding tile on gfx942.
        races = adding and arch == "gfx942"
        if races or triton.cdiv(rows, m) * triton.cdiv(columns, n) * 4 < units * 3:
            m, n, k, warps, stages = 128, 128, 64, 4, 2
    elif arch in ("80", "90", "100"):
        m, n, k, warps, stages = 128, 256, 64, 8, 3
    elif arch == "gfx90a":
        m, n, k, warps, stages = 128, 128, 32, 4, 2
    else:
        m, n, k, warps, stages = 128, 128, 32, 8, 2
    options = {"num_warps": warps, "num_stages": stages}
    if torch.version.hip and arch.startswith("gfx9"):
        options |= {"matrix_instr_nonkdim": 16, "waves_per_eu": 0 if m == 256 else 2}
    even = rows % m == 0 and columns % n == 0 and depth % k == 0
    tile = {"M": m, "N": n, "K": k, "GROUP": GROUP, "XCDS": _xcds(arch, units), "EVEN": even}
    return tile | options


def _multiply(a: Tensor, b: Tensor, total: Tensor, out: Tensor, first: bool, last: bool) -> None:
    """out = a @ b for [R, D] and [D, C] of any strides, out and total contiguous."""
    (rows, depth), columns = a.shape, b.shape[1]
    tile = _tile(rows, columns, depth, a.device, adding=not (first and last))
    grid = (triton.cdiv(rows, tile["M"]) * triton.cdiv(columns, tile["N"]),)
    product_kernel[grid](
        a,
        b,
        total,
        out,
        rows,
        columns,
        depth,
        *a.stride(),
        *b.stride(),
        FIRST=first,
        LAST=last,
        COMPUTE=TYPES[a.dtype],
        **tile,
    )


class _Run:
    """One call: its inputs, and the buffers that its chunks share."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> None:
        low = torch.bfloat16 in (x.dtype, weight.dtype)
        self.dtype = torch.bfloat16 if low else weight.dtype
        self.x = x if x.stride(-1) == 1 else x.contiguous()
        self.weight = weight.to(self.dtype)
        if self.weight.stride(-1) != 1:
            self.weight = self.weight.contiguous()
        self.bias = bias.contiguous()
        self.target = target.contiguous()
        tokens, words = x.shape[0], weight.shape[0]
        at_once = max(256, LOGITS_BYTES // (words * self.dtype.itemsize) // 256 * 256)
        self.chunk = max(1, min(tokens, at_once))
        self.losses = self._new((tokens,), torch.float32)
        self.counted = self._new((2,), torch.float32)
        self.dx = self._new(x.shape, x.dtype)
        self.dweight = self._new(weight.shape, weight.dtype)
        self.total = self.dweight
        if self.chunk < tokens and weight.dtype != torch.float32:
            self.total = self._new(weight.shape, torch.float32)
        self.dbias = self._new(bias.shape, torch.float32)

    def _new(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device=self.x.device)

    def run(self, ignore_index: int, smoothing: float) -> Tensor:
        """Fill the gradients chunk by chunk; return the loss."""
        tokens = self.x.shape[0]
        count_kernel[(1,)](self.target, self.counted, tokens, ignore_index, BLOCK=4096, num_warps=8)
        buffer = self._new((self.chunk, self.weight.shape[0]), self.dtype)
        for start in range(0, tokens, self.chunk):
            rows = slice(start, min(start + self.chunk, tokens))
            logits = buffer[: rows.stop - start]
            self._gradient(rows, logits, ignore_index, smoothing)
            x = self.x[rows].to(self.dtype)
            _multiply(logits, self.weight, self.dx, self.dx[rows], True, True)
            first, last = start == 0, rows.stop == tokens
            _multiply(logits.t(), x, self.total, self.dweight, first, last)
            if self.bias.numel():
                self._bias(logits, first)
        if not tokens:
            self.dweight.zero_()
            self.dbias.zero_()
        loss = self._new((), torch.float32)
        mean_kernel[(1,)](self.losses, self.counted, loss, tokens, BLOCK=4096, num_warps=8)
        return loss

    def _gradient(self, rows: slice, logits: Tensor, ignore_index: int, smoothing: float) -> None:
        """Return the losses of a chunk; `logits` then holds its logits' gradient."""
        x, target = self.x[rows], self.target[rows]
        (count, depth), words = x.shape, self.weight.shape[0]
        tile = _tile(count, words, depth, x.device)
        tiles = triton.cdiv(words, tile["N"])
        statistics = self._new((3, tiles, count), torch.float32)
        lse = self._new((count,), torch.float32)
        smooth = smoothing > 0
        logits_kernel[(triton.cdiv(count, tile["M"]) * tiles,)](
            x,
            self.weight,
            self.bias,
            logits,
            *statistics,
            count,
            words,
            depth,
            x.stride(0),
            self.weight.stride(0),
            BIAS=self.bias.numel() > 0,
            SMOOTH=smooth,
            COMPUTE=TYPES[self.dtype],
            **tile,
        )
        numbers = (ignore_index, smoothing)
        rows_kernel[(triton.cdiv(count, 32),)](
            logits,
            target,
            *statistics,
            lse,
            self.losses[rows],
            count,
            words,
            tiles,
            *numbers,
            SMOOTH=smooth,
            TILES=64,
            ROWS=32,
            num_warps=4,
        )
        grid = (count, triton.cdiv(words, ELEMENT_BLOCK))
        logits_gradient_kernel[grid](
            logits, target, lse, self.counted, words, *numbers, BLOCK=ELEMENT_BLOCK, num_warps=4
        )

    def _bias(self, gradient: Tensor, first: bool) -> None:
        rows, words = gradient.shape
        column_sum_kernel[(triton.cdiv(words, 64),)](
            gradient, self.dbias, rows, words, FIRST=first, ROWS=64, BLOCK=64, num_warps=4
        )


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor, target: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """(loss, dx, dweight, dbias) of x [N, H], weight [V, H], bias [V] or empty, target [N] int64.

    `scalars` are ignore_index and label_smoothing. Products are bf16 if x or weight is.
    """
    call = _Run(x, weight, bias, target)
    loss = call.run(int(scalars[0]), scalars[1])
    return loss, call.dx, call.dweight, call.dbias.to(bias.dtype)
