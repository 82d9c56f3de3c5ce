"""Attention in Triton without whole scores, causal or full, with grouped queries.

    lse = log sum exp(scale q k^T),  o = exp(scale q k^T - lse) v

A program iterates over the keys of its block of queries with a running maximum (arXiv:1805.02867,
arXiv:2307.08691). q is [B, H, T, D], k and v are [B, G, S, D] with G a divisor of H, of any strides
with contiguous features; with a causal mask query t sees keys 0..t. D is 256 at most, scale > 0.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_FEATURES = 256
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _rows(
    base,
    start,
    limit,
    row_stride,
    features,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Load [ROWS, FEATURES] from `start` on; 0 beyond `limit` rows and the existing features."""
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, FEATURES)[None, :]
    place = base + tl.cast(start, tl.int64) * row_stride + (row * row_stride + at)
    if MASKED:
        return tl.load(place, (row < limit - start) & (at < features), 0.0)
    elif EVEN:
        return tl.load(place)
    else:
        return tl.load(place, at < features, 0.0)


@triton.jit
def _forward_keys(
    sums,
    total,
    top,
    query,
    k,
    v,
    first,
    last,
    row,
    keys,
    features,
    k_row,
    v_row,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN: tl.constexpr,
    FEATURES: tl.constexpr,
    N: tl.constexpr,
):
    """Add keys first to last to the running sums; scale is in powers of two."""
    for start in range(first, last, N):
        key = _rows(k, start, keys, k_row, features, EVEN, N, FEATURES, MASKED)
        scores = tl.dot(query, key.T, input_precision="ieee")
        if MASKED:
            column = start + tl.arange(0, N)
            seen = (column < keys)[None, :]
            if CAUSAL:
                seen = seen & (column[None, :] <= row[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        probability = tl.exp2(scores * scale - higher[:, None])
        shrunk = tl.exp2(top - higher)
        total = total * shrunk + tl.sum(probability, 1)
        value = _rows(v, start, keys, v_row, features, EVEN, N, FEATURES, MASKED)
        sums = tl.dot(
            probability.to(value.dtype), value, sums * shrunk[:, None], input_precision="ieee"
        )
        top = higher
    return sums, total, top


def _for_this_gpu(configs: list[triton.Config], named: dict, **more) -> list[triton.Config]:
    """Keep the configurations of the GPU's vendor; the last one, with small tiles, if registers are
    short."""
    amd = bool(torch.version.hip)
    mine = [one for one in configs if ("waves_per_eu" in one.kwargs) == amd]
    narrow = amd and triton.runtime.driver.active.get_current_target().warp_size == 32
    return mine[-1:] if narrow or more["FEATURES"] > 128 else mine[:-1]


def _tuned(amd: Sequence[tuple[int, ...]], nvidia: Sequence[tuple[int, ...]]):
    """Return an autotuner over tiles (M, N, warps, stages); the last is for few registers."""
    options = {"waves_per_eu": 2, "matrix_instr_nonkdim": 16}
    configs = [
        triton.Config({"M": m, "N": n} | more, num_warps=warps, num_stages=stages)
        for sizes, more in ((amd, options), (nvidia, {}))
        for m, n, warps, stages in sizes
    ]
    return triton.autotune(
        configs=configs,
        key=["queries", "keys", "FEATURES", "CAUSAL"],
        prune_configs_by={"early_config_prune": _for_this_gpu},
    )


@_tuned(
    amd=[(128, 64, 8, 1), (128, 32, 4, 2), (64, 32, 4, 1)],
    nvidia=[(128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 1)],
)
@triton.jit
def attention_forward_kernel(
    q,
    k,
    v,
    o,
    lse,
    scale,
    heads,
    group,
    queries,
    keys,
    features,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    CAUSAL: tl.constexpr,
    EVEN: tl.constexpr,
    FEATURES: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Grid: (batch x heads, blocks of queries): blocks of a head go to one die of an MI300."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M  # longest blocks first
    q += tl.cast(batch, tl.int64) * q_batch + tl.cast(head, tl.int64) * q_head
    k += tl.cast(batch, tl.int64) * k_batch + tl.cast(head // group, tl.int64) * k_head
    v += tl.cast(batch, tl.int64) * v_batch + tl.cast(head // group, tl.int64) * v_head
    query = _rows(q, start, queries, q_row, features, EVEN, M, FEATURES, True)
    row = start + tl.arange(0, M)
    sums = tl.zeros((M, FEATURES), tl.float32)
    total = tl.zeros((M,), tl.float32)
    top = tl.full((M,), -float("inf"), tl.float32)
    last = keys
    whole = keys // N * N
    if CAUSAL:
        last = min(keys, start + M)
        whole = min(keys, start + 1) // N * N
    sums, total, top = _forward_keys(
        sums,
        total,
        top,
        query,
        k,
        v,
        0,
        whole,
        row,
        keys,
        features,
        k_row,
        v_row,
        scale * LOG2_E,
        False,
        CAUSAL,
        EVEN,
        FEATURES,
        N,
    )
    sums, total, top = _forward_keys(
        sums,
        total,
        top,
        query,
        k,
        v,
        whole,
        last,
        row,
        keys,
        features,
        k_row,
        v_row,
        scale * LOG2_E,
        True,
        CAUSAL,
        EVEN,
        FEATURES,
        N,
    )
    kept = row < queries
    statistic = tl.cast(tl.program_id(0), tl.int64) * queries + row
    tl.store(lse + statistic, (top + tl.log2(total)) * LN_2, kept)
    at = tl.arange(0, FEATURES)[None, :]
    o += (tl.cast(batch, tl.int64) * queries + start) * heads * features + head * features
    place = o + (tl.arange(0, M)[:, None] * (heads * features) + at)
    result = (sums / total[:, None]).to(o.dtype.element_ty)
    tl.store(place, result, kept[:, None] & (at < features))


def _features_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _head_tensor(like: Tensor) -> Tensor:
    """An empty [B, H, T, D] tensor whose memory is [B, T, H, D]."""
    batch, heads, rows, features = like.shape
    memory = torch.empty((batch, rows, heads, features), dtype=like.dtype, device=like.device)
    return memory.transpose(1, 2)


def _sizes(q: Tensor, k: Tensor, causal: float, scale: float) -> tuple[list, dict]:
    """Return the numbers that every kernel takes, and its compile-time constants."""
    heads, queries, features = q.shape[1:]
    if features > MAX_FEATURES or not scale > 0:
        raise ValueError(
            f"{features} features and scale {scale}: give at most {MAX_FEATURES} features and a "
            "positive scale"
        )
    block = max(16, triton.next_power_of_2(features))
    numbers = [scale, heads, heads // k.shape[1], queries, k.shape[2], features]
    return numbers, {"CAUSAL": bool(causal), "EVEN": block == features, "FEATURES": block}


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(o [B, H, T, D], lse [B, H, T] in fp32); `scalars` are causal (0 or 1) and the scale."""
    q, k, v = (_features_last(one) for one in (q, k, v))
    o = _head_tensor(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    numbers, constants = _sizes(q, k, *scalars)
    strides = [one.stride(axis) for one in (q, k, v) for axis in range(3)]

    def grid(meta):
        return q.shape[0] * q.shape[1], triton.cdiv(q.shape[2], meta["M"])

    attention_forward_kernel[grid](q, k, v, o, lse, *numbers, *strides, **constants)
    return o, lse
