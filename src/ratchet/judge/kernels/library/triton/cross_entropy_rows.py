"""Cross-entropy of rows of logits in Triton: each loss, and the gradient in place of the logits.

    loss = (1 - s) * (lse - z_target) + s * (lse - mean(z))          s: label smoothing

One program passes over its row twice: once for the maximum and the sum of exponentials
(arXiv:1805.02867), once for the gradient (softmax - target) * scale.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 4096


@triton.jit
def cross_entropy_rows_kernel(
    logits,
    target,
    losses,
    columns,
    logits_row,
    ignore_index,
    smoothing,
    scale,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The loss of one row and, in place of its logits, the gradient times scale."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        kept = at < columns - start
        value = tl.load(logits + start + at, kept, 0.0).to(tl.float32)
        plain += value
        higher = tl.maximum(top, tl.where(kept, value, -float("inf")))
        # A lane without a value yet has no maximum to subtract.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.where(kept, tl.exp(value - base), 0.0)
        top = higher
    highest = tl.max(top, 0)
    lse = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    word = tl.load(target + row)
    counts = word != ignore_index
    taken = tl.load(logits + word, counts, 0.0).to(tl.float32)
    loss = (1.0 - smoothing) * (lse - taken) + smoothing * (lse - tl.sum(plain, 0) / columns)
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    if GRADIENT:
        tl.debug_barrier()  # read the target's logit before any lane writes
        share = tl.where(counts, scale, 0.0)
        for start in range(0, columns, BLOCK):
            kept = at < columns - start
            place = logits + start + at
            value = tl.exp(tl.load(place, kept, 0.0).to(tl.float32) - lse) - smoothing / columns
            value -= tl.where(at == word - start, 1.0 - smoothing, 0.0)
            tl.store(place, (value * share).to(logits.dtype.element_ty), kept)


def cross_entropy_rows(
    logits: Tensor, target: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(the gradient of the summed losses times scale in place of `logits` [R, V], losses [R]).

    `scalars` are ignore_index, label_smoothing and scale; with scale 0 the logits are unchanged.
    """
    if logits.stride(-1) != 1:
        raise ValueError(f"logits have strides {list(logits.stride())}: give contiguous rows")
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(MAX_BLOCK, triton.next_power_of_2(columns))
    cross_entropy_rows_kernel[(rows,)](
        logits,
        target.contiguous(),
        losses,
        columns,
        logits.stride(0),
        int(scalars[0]),
        scalars[1],
        scalars[2],
        GRADIENT=scalars[2] != 0,
        BLOCK=block,
        num_warps=max(1, block // 512),
    )
    return logits, losses
