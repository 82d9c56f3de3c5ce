"""Attention in Triton without whole scores, causal or full, with grouped queries, and its gradient.

    lse = log sum exp(scale q k^T),  o = exp(scale q k^T - lse) v
    p = exp(scale q k^T - lse),  ds = p * (do v^T - rowsum(do * o))
    dq = scale ds k,  dk = scale ds^T q,  dv = p^T do               (arXiv:2307.08691, algorithm 2)

A program of the forward iterates over the keys of its block of queries with a running maximum
(arXiv:1805.02867). The backward recomputes the scores twice, once for the gradients of keys and
values and once for those of the queries. So no atomic additions are needed, and with the same tiles
two runs give the same bits. q is [B, H, T, D], k and v are [B, G, S, D] with G a divisor of H, of
any strides with contiguous features; with a causal mask query t sees keys 0..t. D is 256 at most,
scale > 0.
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
    # The blocks that every query sees, then those that need a mask.
    for masked in tl.static_range(2):
        begin, end = 0, whole
        if masked:
            begin, end = whole, last
        sums, total, top = _forward_keys(
            sums,
            total,
            top,
            query,
            k,
            v,
            begin,
            end,
            row,
            keys,
            features,
            k_row,
            v_row,
            scale * LOG2_E,
            masked,
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


@triton.jit
def delta_kernel(
    grad,
    o,
    delta,
    heads,
    queries,
    features,
    grad_batch,
    grad_head,
    grad_row,
    o_batch,
    o_head,
    o_row,
    FEATURES: tl.constexpr,
    M: tl.constexpr,
):
    """delta [B, H, T] = the sum of grad * o over features."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.program_id(1) * M
    grad += tl.cast(batch, tl.int64) * grad_batch + tl.cast(head, tl.int64) * grad_head
    o += tl.cast(batch, tl.int64) * o_batch + tl.cast(head, tl.int64) * o_head
    given = _rows(grad, start, queries, grad_row, features, False, M, FEATURES, True)
    output = _rows(o, start, queries, o_row, features, False, M, FEATURES, True)
    row = start + tl.arange(0, M)
    found = tl.sum(given.to(tl.float32) * output.to(tl.float32), 1)
    tl.store(delta + tl.cast(tl.program_id(0), tl.int64) * queries + row, found, row < queries)


@triton.jit
def _backward_queries(
    dk,
    dv,
    key,
    value,
    q,
    grad,
    lse,
    delta,
    first,
    last,
    column,
    queries,
    features,
    q_row,
    grad_row,
    scale,
    MASKED: tl.constexpr,
    EVEN: tl.constexpr,
    FEATURES: tl.constexpr,
    M: tl.constexpr,
):
    """Add the contribution of queries first to last to dk and dv; MASKED means a causal mask."""
    for start in range(first, last, M):
        row = start + tl.arange(0, M)
        query = _rows(q, start, queries, q_row, features, EVEN, M, FEATURES, True)
        given = _rows(grad, start, queries, grad_row, features, EVEN, M, FEATURES, True)
        bottom = tl.load(lse + row, row < queries, 0.0) * LOG2_E
        scores = tl.dot(key, query.T, input_precision="ieee")
        probability = tl.exp2(scores * scale - bottom[None, :])
        if MASKED:
            probability = tl.where(column[:, None] <= row[None, :], probability, 0.0)
        dv = tl.dot(probability.to(given.dtype), given, dv, input_precision="ieee")
        slope = tl.dot(value, given.T, input_precision="ieee")
        slope -= tl.load(delta + row, row < queries, 0.0)[None, :]
        slope = (probability * slope).to(query.dtype)
        dk = tl.dot(slope, query, dk, input_precision="ieee")
    return dk, dv


@_tuned(
    amd=[(32, 64, 4, 1), (32, 128, 8, 1), (16, 32, 4, 1)],
    nvidia=[(32, 128, 8, 2), (64, 64, 8, 2), (32, 32, 4, 1)],
)
@triton.jit
def key_gradient_kernel(
    grad,
    q,
    k,
    v,
    lse,
    delta,
    dk,
    dv,
    scale,
    heads,
    group,
    queries,
    keys,
    features,
    grad_batch,
    grad_head,
    grad_row,
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
    """dk and dv. Grid: (batch x groups, blocks of keys); a program takes every head of a group."""
    groups = heads // group
    batch, own = tl.program_id(0) // groups, tl.program_id(0) % groups
    start = tl.program_id(1) * N
    k += tl.cast(batch, tl.int64) * k_batch + tl.cast(own, tl.int64) * k_head
    v += tl.cast(batch, tl.int64) * v_batch + tl.cast(own, tl.int64) * v_head
    key = _rows(k, start, keys, k_row, features, EVEN, N, FEATURES, True)
    value = _rows(v, start, keys, v_row, features, EVEN, N, FEATURES, True)
    column = start + tl.arange(0, N)
    key_sums = tl.zeros((N, FEATURES), tl.float32)
    value_sums = tl.zeros((N, FEATURES), tl.float32)
    first = 0
    whole = 0
    if CAUSAL:
        first = start // M * M
        whole = min(tl.cdiv(start + N, M) * M, tl.cdiv(queries, M) * M)
    for member in range(0, group):
        head = own * group + member
        query = q + tl.cast(batch, tl.int64) * q_batch + tl.cast(head, tl.int64) * q_head
        given = grad + tl.cast(batch, tl.int64) * grad_batch + tl.cast(head, tl.int64) * grad_head
        statistic = tl.cast(batch * heads + head, tl.int64) * queries
        # The queries that a causal mask cuts, then those that see every key.
        for part in tl.static_range(2):
            begin, end = first, whole
            if part:
                begin, end = whole, queries
            if CAUSAL or part:
                key_sums, value_sums = _backward_queries(
                    key_sums,
                    value_sums,
                    key,
                    value,
                    query,
                    given,
                    lse + statistic,
                    delta + statistic,
                    begin,
                    end,
                    column,
                    queries,
                    features,
                    q_row,
                    grad_row,
                    scale * LOG2_E,
                    part == 0,
                    EVEN,
                    FEATURES,
                    M,
                )
    at = tl.arange(0, FEATURES)[None, :]
    kept = (column < keys)[:, None] & (at < features)
    corner = (tl.cast(batch, tl.int64) * keys + start) * groups * features + own * features
    place = corner + (tl.arange(0, N)[:, None] * (groups * features) + at)
    tl.store(dk + place, (key_sums * scale).to(dk.dtype.element_ty), kept)
    tl.store(dv + place, value_sums.to(dv.dtype.element_ty), kept)


@triton.jit
def _backward_keys(
    dq,
    query,
    given,
    bottom,
    delta,
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
    """Add the contribution of keys first to last to dq."""
    for start in range(first, last, N):
        key = _rows(k, start, keys, k_row, features, EVEN, N, FEATURES, MASKED)
        value = _rows(v, start, keys, v_row, features, EVEN, N, FEATURES, MASKED)
        scores = tl.dot(query, key.T, input_precision="ieee")
        probability = tl.exp2(scores * scale - bottom[:, None])
        if MASKED:
            column = start + tl.arange(0, N)
            seen = (column < keys)[None, :]
            if CAUSAL:
                seen = seen & (column[None, :] <= row[:, None])
            probability = tl.where(seen, probability, 0.0)
        slope = tl.dot(given, value.T, input_precision="ieee")
        slope = (probability * (slope - delta[:, None])).to(key.dtype)
        dq = tl.dot(slope, key, dq, input_precision="ieee")
    return dq


@_tuned(
    amd=[(64, 32, 4, 1), (64, 64, 8, 1), (32, 16, 4, 1)],
    nvidia=[(128, 32, 8, 2), (64, 64, 8, 2), (32, 32, 4, 1)],
)
@triton.jit
def query_gradient_kernel(
    grad,
    q,
    k,
    v,
    lse,
    delta,
    dq,
    scale,
    heads,
    group,
    queries,
    keys,
    features,
    grad_batch,
    grad_head,
    grad_row,
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
    """dq. Grid: (batch x heads, blocks of queries)."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = (tl.num_programs(1) - 1 - tl.program_id(1)) * M  # longest blocks first
    q += tl.cast(batch, tl.int64) * q_batch + tl.cast(head, tl.int64) * q_head
    grad += tl.cast(batch, tl.int64) * grad_batch + tl.cast(head, tl.int64) * grad_head
    k += tl.cast(batch, tl.int64) * k_batch + tl.cast(head // group, tl.int64) * k_head
    v += tl.cast(batch, tl.int64) * v_batch + tl.cast(head // group, tl.int64) * v_head
    row = start + tl.arange(0, M)
    kept = row < queries
    statistic = tl.cast(tl.program_id(0), tl.int64) * queries + row
    bottom = tl.load(lse + statistic, kept, 0.0) * LOG2_E
    inner = tl.load(delta + statistic, kept, 0.0)
    query = _rows(q, start, queries, q_row, features, EVEN, M, FEATURES, True)
    given = _rows(grad, start, queries, grad_row, features, EVEN, M, FEATURES, True)
    sums = tl.zeros((M, FEATURES), tl.float32)
    last = keys
    whole = keys // N * N
    if CAUSAL:
        last = min(keys, start + M)
        whole = min(keys, start + 1) // N * N
    # The blocks that every query sees, then those that need a mask.
    for masked in tl.static_range(2):
        begin, end = 0, whole
        if masked:
            begin, end = whole, last
        sums = _backward_keys(
            sums,
            query,
            given,
            bottom,
            inner,
            k,
            v,
            begin,
            end,
            row,
            keys,
            features,
            k_row,
            v_row,
            scale * LOG2_E,
            masked,
            CAUSAL,
            EVEN,
            FEATURES,
            N,
        )
    at = tl.arange(0, FEATURES)[None, :]
    dq += (tl.cast(batch, tl.int64) * queries + start) * heads * features + head * features
    place = dq + (tl.arange(0, M)[:, None] * (heads * features) + at)
    tl.store(place, (sums * scale).to(dq.dtype.element_ty), kept[:, None] & (at < features))


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


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scalars: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) for the gradient of o, given the forward's o and lse."""
    grad, q, k, v, o = (_features_last(one) for one in (grad, q, k, v, o))
    lse = lse.contiguous()
    dq, dk, dv = (_head_tensor(one) for one in (q, k, v))
    numbers, constants = _sizes(q, k, *scalars)
    heads, queries, features = q.shape[1:]
    delta = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    programs = q.shape[0] * heads
    given = [one.stride(axis) for one in (grad, o) for axis in range(3)]
    delta_kernel[(programs, triton.cdiv(queries, 64))](
        grad,
        o,
        delta,
        heads,
        queries,
        features,
        *given,
        FEATURES=constants["FEATURES"],
        M=64,
        num_warps=4,
    )
    strides = [one.stride(axis) for one in (grad, q, k, v) for axis in range(3)]

    def key_grid(meta):
        return q.shape[0] * k.shape[1], triton.cdiv(k.shape[2], meta["N"])

    def query_grid(meta):
        return programs, triton.cdiv(queries, meta["M"])

    key_gradient_kernel[key_grid](
        grad, q, k, v, lse, delta, dk, dv, *numbers, *strides, **constants
    )
    query_gradient_kernel[query_grid](
        grad, q, k, v, lse, delta, dq, *numbers, *strides, **constants
    )
    return dq, dk, dv
