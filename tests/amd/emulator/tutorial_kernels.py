"""Triton kernels of the kinds that everybody writes first, each in another style of launch.

A vector's sum, a softmax by a fixed number of programs, a matrix product in groups of tiles, a
dropout with a seed, a layer norm's gradient under a lock, several products in one launch, and
attention that never stores its scores.
"""

from __future__ import annotations

from typing import Final

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem

HEAD = """
import torch
import triton
import triton.language as tl
"""

VECTOR_ADD = """
@triton.jit
def add_kernel(y, total, g, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = at < n
    more = tl.load(g + at, mask=kept).to(tl.float32)
    tl.store(y + at, tl.load(total + at, mask=kept) + more * factor, mask=kept)

def accumulate(total, g, scalars):
    total, g = total.contiguous(), g.contiguous()
    y, n = torch.empty_like(total), total.numel()
    add_kernel[(triton.cdiv(n, 1024),)](y, total, g, scalars[0], n, BLOCK=1024)
    return (y,)
"""

SOFTMAX = """
@triton.jit
def softmax_kernel(y, x, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    kept = at < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        value = tl.load(x + row * columns + at, mask=kept, other=-float("inf"))
        power = tl.exp(value - tl.max(value, axis=0))
        tl.store(y + row * columns + at, power / tl.sum(power, axis=0), mask=kept)

def softmax(x, scalars):
    x = x.contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    rows = x.numel() // columns
    block = triton.next_power_of_2(columns)
    softmax_kernel[(min(rows, 5),)](y, x, rows, columns, BLOCK=block, STAGES=2, num_warps=4)
    return (y,)
"""

MATMUL = """
@triton.jit
def product_kernel(x, w, b, y, N, M, K, TILE: tl.constexpr, DEPTH: tl.constexpr,
                   GROUP: tl.constexpr):
    # Tiles in groups of a few rows, so that a group's rows of x stay in L2.
    program = tl.program_id(0)
    across, down = tl.cdiv(M, TILE), tl.cdiv(N, TILE)
    group = program // (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    row = group * GROUP + program % (GROUP * across) % height
    column = program % (GROUP * across) // height
    n = row * TILE + tl.arange(0, TILE)
    m = column * TILE + tl.arange(0, TILE)
    k = tl.arange(0, DEPTH)
    from_x = x + (n % N)[:, None] * K + k[None, :]
    from_w = w + (m % M)[None, :] * K + k[:, None]
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, K, DEPTH):
        left = tl.load(from_x, mask=k[None, :] < K - start, other=0.0)
        right = tl.load(from_w, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        from_x += DEPTH
        from_w += DEPTH
    total += tl.load(b + m, mask=m < M, other=0.0)[None, :]
    total = total * 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    inside = (n[:, None] < N) & (m[None, :] < M)
    tl.store(y + n[:, None] * M + m[None, :], total, mask=inside)

def linear_gelu(x, w, b, scalars):
    x, w, b = x.contiguous(), w.contiguous(), b.contiguous()
    (N, K), M = x.shape, w.shape[0]
    y = x.new_empty(N, M)
    grid = (triton.cdiv(N, 16) * triton.cdiv(M, 16),)
    product_kernel[grid](x, w, b, y, N, M, K, TILE=16, DEPTH=32, GROUP=2)
    return (y,)
"""

DROPOUT = """
@triton.jit
def dropout_kernel(x, y, n, rate, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    kept = tl.rand(seed, at) > rate
    tl.store(y + at, tl.where(kept, value / (1 - rate), 0.0), mask=inside)

def seeded_dropout(x, scalars):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    dropout_kernel[(triton.cdiv(n, 256),)](x, y, n, scalars[0], int(scalars[1]), BLOCK=256)
    return (y,)
"""

LAYER_NORM_BACKWARD = """
@triton.jit
def rows_kernel(grad, x, weight, dx, parts, locks, columns, eps, PARTS: tl.constexpr,
                BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    kept = at < columns
    value = tl.load(x + row * columns + at, mask=kept, other=0.0).to(tl.float32)
    slope = tl.load(grad + row * columns + at, mask=kept, other=0.0).to(tl.float32)
    scale = tl.load(weight + at, mask=kept, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    centred = tl.where(kept, value - mean, 0.0)
    turned = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    unit = centred * turned
    scaled = tl.where(kept, slope * scale, 0.0)
    along = tl.sum(unit * scaled, axis=0) / columns
    level = tl.sum(scaled, axis=0) / columns
    found = (scaled - unit * along - level) * turned
    tl.store(dx + row * columns + at, found.to(dx.dtype.element_ty), mask=kept)
    # A few sums over rows, each behind a lock; `locks` also says whether a sum has begun.
    part = row % PARTS
    while tl.atomic_cas(locks + part, 0, 1) == 1:
        pass
    begun = tl.load(locks + PARTS + part) == 1
    place = parts + part * 2 * columns + at
    first, second = slope * unit, slope
    if begun:
        first += tl.load(place, mask=kept)
        second += tl.load(place + columns, mask=kept)
    else:
        tl.atomic_xchg(locks + PARTS + part, 1)
    tl.store(place, first, mask=kept)
    tl.store(place + columns, second, mask=kept)
    tl.debug_barrier()
    tl.atomic_xchg(locks + part, 0)

@triton.jit
def columns_kernel(parts, dweight, dbias, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    kept = (at < columns)[None, :]
    place = parts + part[:, None] * 2 * columns + at[None, :]
    first = tl.sum(tl.load(place, mask=kept, other=0.0), axis=0)
    second = tl.sum(tl.load(place + columns, mask=kept, other=0.0), axis=0)
    tl.store(dweight + at, first.to(dweight.dtype.element_ty), mask=at < columns)
    tl.store(dbias + at, second.to(dbias.dtype.element_ty), mask=at < columns)

def layer_norm_backward(grad, x, weight, scalars):
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    parts = torch.zeros(4, 2, columns, dtype=torch.float32, device=x.device)
    locks = torch.zeros(8, dtype=torch.int32, device=x.device)
    block = triton.next_power_of_2(columns)
    rows_kernel[(rows,)](
        grad, x, weight, dx, parts, locks, columns, scalars[0], PARTS=4, BLOCK=block
    )
    columns_kernel[(triton.cdiv(columns, 32),)](parts, dweight, dbias, columns, PARTS=4, BLOCK=32)
    return dx, dweight, dbias
"""

GROUPED_GEMM = """
@triton.jit
def grouped_kernel(places, sizes, experts, PROGRAMS: tl.constexpr, TILE: tl.constexpr,
                   DEPTH: tl.constexpr):
    # A fixed number of programs walks the tiles of all products, whose places are in memory.
    tile = tl.program_id(0)
    done = 0
    for one in range(experts):
        x = tl.load(places + one * 3).to(tl.pointer_type(tl.float32))
        w = tl.load(places + one * 3 + 1).to(tl.pointer_type(tl.float32))
        y = tl.load(places + one * 3 + 2).to(tl.pointer_type(tl.float32))
        N = tl.load(sizes + one * 3)
        M = tl.load(sizes + one * 3 + 1)
        K = tl.load(sizes + one * 3 + 2)
        across = tl.cdiv(M, TILE)
        tiles = tl.cdiv(N, TILE) * across
        while tile >= done and tile < done + tiles:
            n = (tile - done) // across * TILE + tl.arange(0, TILE)
            m = (tile - done) % across * TILE + tl.arange(0, TILE)
            k = tl.arange(0, DEPTH)
            total = tl.zeros((TILE, TILE), tl.float32)
            for start in range(0, K, DEPTH):
                deep = start + k
                left = tl.load(x + n[:, None] * K + deep[None, :],
                               mask=(n[:, None] < N) & (deep[None, :] < K), other=0.0)
                right = tl.load(w + m[None, :] * K + deep[:, None],
                                mask=(m[None, :] < M) & (deep[:, None] < K), other=0.0)
                total = tl.dot(left, right, total, input_precision="ieee")
            inside = (n[:, None] < N) & (m[None, :] < M)
            tl.store(y + n[:, None] * M + m[None, :], total, mask=inside)
            tile += PROGRAMS
        done += tiles

def grouped_linear(x, w, scalars):
    x, w = x.contiguous(), w.contiguous()
    (E, N, K), M = x.shape, w.shape[1]
    y = x.new_empty(E, N, M)
    places = torch.tensor([[one.data_ptr() for one in three] for three in zip(x, w, y)])
    sizes = torch.tensor([[N, M, K]] * E, dtype=torch.int32)
    grouped_kernel[(3,)](places.to(x.device), sizes.to(x.device), E, PROGRAMS=3, TILE=16, DEPTH=16)
    return (y,)
"""

ATTENTION = """
@triton.jit
def attention_kernel(q, k, v, y, T, scale, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
                     KEYS: tl.constexpr):
    start = tl.program_id(0) * QUERIES
    head = tl.program_id(1).to(tl.int64) * T * WIDTH
    at = start + tl.arange(0, QUERIES)
    wide = tl.arange(0, WIDTH)
    kept = at[:, None] < T
    query = tl.load(q + head + at[:, None] * WIDTH + wide[None, :], mask=kept, other=0.0)
    top = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in range(0, min(start + QUERIES, T), KEYS):
        other = first + tl.arange(0, KEYS)
        there = other < T
        key = tl.load(k + head + other[None, :] * WIDTH + wide[:, None], mask=there[None, :],
                      other=0.0)
        value = tl.load(v + head + other[:, None] * WIDTH + wide[None, :], mask=there[:, None],
                        other=0.0)
        scores = tl.dot(query, key) * scale
        scores = tl.where((at[:, None] >= other[None, :]) & there[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        power = tl.exp(scores - higher[:, None])
        shrunk = tl.exp(top - higher)
        total = total * shrunk + tl.sum(power, axis=1)
        out = tl.dot(power.to(value.dtype), value, out * shrunk[:, None])
        top = higher
    found = (out / total[:, None]).to(y.dtype.element_ty)
    tl.store(y + head + at[:, None] * WIDTH + wide[None, :], found, mask=kept)

def attention_causal_bf16(q, k, v, scalars):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    B, H, T, D = q.shape
    y = torch.empty_like(q)
    grid = (triton.cdiv(T, 32), B * H)
    attention_kernel[grid](q, k, v, y, T, D**-0.5, WIDTH=D, QUERIES=32, KEYS=16)
    return (y,)
"""

SEEDED_DROPOUT = '''
import torch
from ratchet import Case, Problem, TensorSpec

def philox(seed, count):
    """Philox 4x32-10 (Salmon et al., SC 2011): the first of four words for each counter."""
    one, many = torch.arange(count, dtype=torch.int64), (1 << 32) - 1
    words = [one, torch.zeros_like(one), torch.zeros_like(one), torch.zeros_like(one)]
    keys = [seed & many, seed >> 32 & many]

    def product(x, factor):  # of two words, in halves that int64 holds
        low, high = x * (factor & 0xFFFF), x * (factor >> 16)
        middle = (low >> 16) + (high & 0xFFFF)
        return (high >> 16) + (middle >> 16), (middle & 0xFFFF) << 16 | low & 0xFFFF

    for _ in range(10):
        (high0, low0), (high2, low2) = product(words[0], 0xD2511F53), product(words[2], 0xCD9E8D57)
        words = [high2 ^ words[1] ^ keys[0], low2, high0 ^ words[3] ^ keys[1], low0]
        keys = [(keys[0] + 0x9E3779B9) & many, (keys[1] + 0xBB67AE85) & many]
    return words[0]

def seeded_dropout(x, scalars):
    words = philox(int(scalars[1]), x.numel())
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words)
    share = torch.where(signed < 0, -signed - 1, signed).double() * 4.6566127342e-10
    kept = (share > scalars[0]).reshape(x.shape).to(x.device)
    return (torch.where(kept, x / (1 - scalars[0]), torch.zeros_like(x)),)
'''


def seeded_dropout() -> Problem:
    """Return dropout whose mask follows from a seed, as `tl.rand` draws it."""

    def case(name: str, shape: tuple[int, ...], seed: float, **flags: bool) -> Case:
        spec = TensorSpec(shape=shape, dtype="float32")
        return Case(name=name, inputs=(spec,), scalars=(0.3, seed), **flags)

    cases = (
        case("timed", (32, 256), 7.0, timed=True),
        case("ragged", (13, 77), 1234567.0, hidden=True),
    )
    return Problem(
        name="seeded_dropout", reference="seeded_dropout", cases=cases, text=SEEDED_DROPOUT
    )


SOURCES: Final = {
    "accumulate": VECTOR_ADD,
    "softmax": SOFTMAX,
    "linear_gelu": MATMUL,
    "seeded_dropout": DROPOUT,
    "layer_norm_backward": LAYER_NORM_BACKWARD,
    "grouped_linear": GROUPED_GEMM,
    "attention_causal_bf16": ATTENTION,
}
"""The kernels, by the problem that they answer."""


def tutorial_kernel(name: str, **changes: str) -> Kernel:
    """Return a kernel, with texts replaced that each stand in it once."""
    source = SOURCES[name]
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return Kernel(name=name, language="triton", source=HEAD + source, entry=name)


def tutorial_problem(name: str) -> Problem:
    """Return the problem of a kernel, at the smallest sizes."""
    return seeded_dropout() if name == "seeded_dropout" else find_problem(name).at("ci")
