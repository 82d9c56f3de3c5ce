"""Small Triton kernels of many kinds, each checked against torch; a program for `ratchet emulate`.

It prints a line for each kind and one JSON document last. `emulate_suite.py` runs it per target.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

GPU = "cuda"
KINDS: dict[str, Callable[[], None]] = {}
FLOATS = (
    "exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "abs", "floor", "ceil",
    "sigmoid", "div", "div_rn", "clamp", "fma", "where", "maximum", "tanh", "pow", "log1p", "expm1",
    "atan2", "erfinv", "round",
)  # fmt: skip
INTEGERS = ("div", "mod", "shift", "mulhi", "bits", "min", "not")
CASTS = ("float16", "bfloat16", "float8_e5m2", "float64", "int8", "int16", "uint8", "int64")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "xor", "all", "any", "product")


def kind(check: Callable[[], None]) -> Callable[[], None]:
    """Register a kind under its function's name."""
    KINDS[check.__name__] = check
    return check


def close(found: Tensor, wanted: Tensor, bound: float = 1e-5) -> None:
    """Compare two tensors as float64."""
    torch.testing.assert_close(found.double(), wanted.double(), rtol=bound, atol=bound)


# ---- elementwise ----
@triton.jit
def float_kernel(x, z, y, n, OP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, at < n, 1.0)
    b = tl.load(z + at, at < n, 1.0)
    if OP == "exp":
        r = tl.exp(a)
    elif OP == "exp2":
        r = tl.exp2(a)
    elif OP == "log":
        r = tl.log(b)
    elif OP == "log2":
        r = tl.log2(b)
    elif OP == "sin":
        r = tl.sin(a)
    elif OP == "cos":
        r = tl.cos(a)
    elif OP == "sqrt":
        r = tl.sqrt(b)
    elif OP == "rsqrt":
        r = tl.rsqrt(b)
    elif OP == "erf":
        r = tl.erf(a)
    elif OP == "abs":
        r = tl.abs(a)
    elif OP == "floor":
        r = tl.floor(a)
    elif OP == "ceil":
        r = tl.ceil(a)
    elif OP == "sigmoid":
        r = tl.sigmoid(a)
    elif OP == "div":
        r = a / b
    elif OP == "div_rn":
        r = tl.div_rn(a, b)
    elif OP == "clamp":
        r = tl.clamp(a, -0.5, 0.5)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "where":
        r = tl.where(a > b, a, b * 2)
    elif OP == "maximum":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "tanh":
        r = libdevice.tanh(a)
    elif OP == "pow":
        r = libdevice.pow(b, a)
    elif OP == "log1p":
        r = libdevice.log1p(b)
    elif OP == "expm1":
        r = libdevice.expm1(a)
    elif OP == "atan2":
        r = libdevice.atan2(a, b)
    elif OP == "erfinv":
        r = libdevice.erfinv(a / 4)
    else:
        r = libdevice.nearbyint(a)
    tl.store(y + at, r, at < n)


def of_torch(op: str, a: Tensor, b: Tensor) -> Tensor:
    """Return torch's answer for an operation on floats."""
    known = {
        "div": lambda: a / b,
        "div_rn": lambda: a / b,
        "clamp": lambda: a.clamp(-0.5, 0.5),
        "fma": lambda: a * b + a,
        "where": lambda: torch.where(a > b, a, b * 2),
        "maximum": lambda: torch.maximum(a, b),
        "pow": lambda: torch.pow(b, a),
        "atan2": lambda: torch.atan2(a, b),
        "erfinv": lambda: torch.erfinv(a / 4),
    }
    over_b = op in ("log", "log2", "sqrt", "rsqrt", "log1p")
    return known[op]() if op in known else getattr(torch, op)(b if over_b else a)


def float_check(op: str) -> Callable[[], None]:
    def check() -> None:
        a = torch.rand(300, device=GPU) * 6 - 3
        b = torch.rand(300, device=GPU) + 0.1
        y = torch.empty_like(a)
        float_kernel[(3,)](a, b, y, 300, OP=op, BLOCK=128)
        close(y, of_torch(op, a.double(), b.double()), 1e-5)

    return check


@triton.jit
def integer_kernel(x, z, y, OP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    b = tl.load(z + at)
    if OP == "div":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "shift":
        r = (a << (b & 7)) >> 2
    elif OP == "mulhi":
        r = tl.umulhi(a, b)
    elif OP == "bits":
        r = (a & b) | (a ^ 5)
    elif OP == "min":
        r = tl.minimum(a, b)
    else:
        r = ~a
    tl.store(y + at, r)


def integer_check(op: str) -> Callable[[], None]:
    def check() -> None:
        for dtype in (torch.int32, torch.int64):
            a = torch.randint(0, 1 << 30, (64,), dtype=dtype, device=GPU)
            b = torch.randint(1, 1 << 20, (64,), dtype=dtype, device=GPU)
            y = torch.empty_like(a)
            integer_kernel[(1,)](a, b, y, OP=op, BLOCK=64)
            of = of_integers(op, 32 if dtype == torch.int32 else 64)
            assert y.tolist() == [of(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]

    return check


def of_integers(op: str, bits: int) -> Callable[[int, int], int]:
    """Return Python's answer for an operation on integers of that many bits."""
    known: dict[str, Callable[[int, int], int]] = {
        "div": lambda p, q: p // q,
        "mod": lambda p, q: p % q,
        "shift": lambda p, q: _signed(p << (q & 7), bits) >> 2,
        "mulhi": lambda p, q: p * q >> bits,
        "bits": lambda p, q: (p & q) | (p ^ 5),
        "min": min,
        "not": lambda p, q: ~p,
    }
    return known[op]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@triton.jit
def cast_kernel(x, y, z, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at).to(y.dtype.element_ty)
    tl.store(y + at, value)
    tl.store(z + at, value.to(tl.float32))


def cast_check(name: str) -> Callable[[], None]:
    def check() -> None:
        dtype = getattr(torch, name)
        x = torch.linspace(0, 100, 64, device=GPU)
        y = torch.empty(64, dtype=dtype, device=GPU)
        z = torch.empty(64, device=GPU)
        cast_kernel[(1,)](x, y, z, BLOCK=64)
        close(y.float(), x.to(dtype).float())
        close(z, x.to(dtype).float())

    return check


# ---- reductions, scans, order ----
@triton.jit
def _product(a, b):  # type: ignore[no-untyped-def]
    return a * b


@triton.jit
def reduce_kernel(x, y, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, M)
    value = tl.load(x + rows[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        r = tl.sum(value, 1)
    elif OP == "max":
        r = tl.max(value, 1)
    elif OP == "min":
        r = tl.min(value, 1)
    elif OP == "argmax":
        r = tl.argmax(value, 1).to(tl.float32)
    elif OP == "argmin":
        r = tl.argmin(value, 1).to(tl.float32)
    elif OP == "xor":
        r = tl.xor_sum((value * 100).to(tl.int32), 1).to(tl.float32)
    elif OP == "all":
        r = tl.min((value > 0.01).to(tl.int32), 1).to(tl.float32)
    elif OP == "any":
        r = tl.max((value > 0.99).to(tl.int32), 1).to(tl.float32)
    else:
        r = tl.reduce(value, 1, _product)
    tl.store(y + rows, r)


def reduce_check(op: str) -> Callable[[], None]:
    def check() -> None:
        x = torch.rand(16, 64, device=GPU)
        y = torch.empty(16, device=GPU)
        reduce_kernel[(1,)](x, y, OP=op, M=16, N=64)
        if op == "xor":
            wanted = torch.zeros(16, dtype=torch.int32, device=GPU)
            for column in (x * 100).to(torch.int32).T:
                wanted ^= column
        elif op in ("max", "min", "sum", "argmax", "argmin"):
            wanted = getattr(x, "a" + op if op in ("max", "min") else op)(1)
        elif op == "product":
            wanted = x.prod(1)
        else:
            wanted = (x > 0.01).all(1) if op == "all" else (x > 0.99).any(1)
        close(y, wanted)

    return check


@triton.jit
def scan_kernel(x, y, z, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.store(y + at, tl.cumsum(value, 0))
    tl.store(z + at, tl.associative_scan(value, 0, _product, reverse=True))


@kind
def scans() -> None:
    x = torch.rand(128, device=GPU) + 0.5
    y, z = torch.empty_like(x), torch.empty_like(x)
    scan_kernel[(1,)](x, y, z, N=128)
    close(y, x.cumsum(0))
    close(z, x.flip(0).cumprod(0).flip(0))


@triton.jit
def order_kernel(x, y, z, h, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.store(y + at, tl.sort(value))
    tl.store(z + at, tl.flip(value, 0))
    tl.store(h + tl.arange(0, 16), tl.histogram(value % 16, 16))


@kind
def sort_flip_histogram() -> None:
    x = torch.randint(0, 1000, (64,), dtype=torch.int32, device=GPU)
    y, z = torch.empty_like(x), torch.empty_like(x)
    h = torch.empty(16, dtype=torch.int32, device=GPU)
    order_kernel[(1,)](x, y, z, h, N=64)
    close(y, x.sort().values)
    close(z, x.flip(0))
    close(h, torch.bincount(x % 16, minlength=16))


@triton.jit
def shape_kernel(x, i, y, z, g, M: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    value = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(y + n[:, None] * M + m[None, :], tl.trans(value))
    first, second = tl.split(tl.reshape(value, (M, N // 2, 2)))
    half = tl.arange(0, N // 2)
    tl.store(z + m[:, None] * N + n[None, :], tl.interleave(second, first))
    tl.store(
        g + m[:, None] * N + n[None, :],
        tl.gather(value, tl.load(i + m[:, None] * N + n[None, :]), 1),
    )
    tl.static_assert(half.shape[0] == N // 2)


@kind
def trans_split_interleave_gather() -> None:
    x = torch.rand(16, 32, device=GPU)
    i = torch.randint(0, 32, (16, 32), dtype=torch.int32, device=GPU)
    y, z, g = torch.empty(32, 16, device=GPU), torch.empty_like(x), torch.empty_like(x)
    shape_kernel[(1,)](x, i, y, z, g, M=16, N=32)
    close(y, x.T)
    close(z, x.reshape(16, 16, 2).flip(2).reshape(16, 32))
    close(g, torch.gather(x, 1, i.long()))


# ---- products ----
@triton.jit
def dot_kernel(  # type: ignore[no-untyped-def]
    a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr
):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    if c.dtype.element_ty == tl.int32:
        total = tl.zeros((M, N), tl.int32)
    else:
        total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = tl.load(
            a + rows[:, None] * k + inner[None, :], (rows[:, None] < m) & (inner[None, :] < k), 0.0
        )
        right = tl.load(
            b + inner[:, None] * n + columns[None, :],
            (inner[:, None] < k) & (columns[None, :] < n),
            0.0,
        )
        total = tl.dot(left, right, total, input_precision=HOW, out_dtype=total.dtype)
    tl.store(
        c + rows[:, None] * n + columns[None, :],
        total,
        (rows[:, None] < m) & (columns[None, :] < n),
    )


def dot_check(name: str, how: str = "ieee", warps: int = 4) -> Callable[[], None]:
    def check() -> None:
        dtype = getattr(torch, name)
        m, n, k = 50, 70, 96
        a, b = (torch.randn(shape, device=GPU) for shape in ((m, k), (k, n)))
        if dtype == torch.int8:
            a, b = (one * 20 for one in (a, b))
        a, b = a.to(dtype), b.to(dtype)
        c = torch.empty(
            m, n, dtype=torch.int32 if dtype == torch.int8 else torch.float32, device=GPU
        )
        dot_kernel[(2, 3)](a, b, c, m, n, k, M=32, N=32, K=32, HOW=how, num_warps=warps)
        close(c, a.double() @ b.double(), 2e-2 if how == "tf32" else 1e-4)

    return check


@triton.jit
def batched_kernel(a, b, c):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 2)[:, None, None] * 256 + (
        tl.arange(0, 16)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    )
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@kind
def dot_of_three_dimensions() -> None:
    a, b = (torch.randn(2, 16, 16, device=GPU, dtype=torch.float16) for _ in range(2))
    c = torch.empty(2, 16, 16, device=GPU)
    batched_kernel[(1,)](a, b, c)
    close(c, a.double() @ b.double(), 1e-3)


@triton.jit
def attention_kernel(q, k, v, o, length, scale, D: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :], rows[:, None] < length, 0.0)
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, length, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        key = tl.load(k + keys[None, :] * D + d[:, None], keys[None, :] < length, 0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((keys[None, :] <= rows[:, None]) & (keys[None, :] < length), score, -1e30)
        peak = tl.maximum(most, tl.max(score, 1))
        raised = tl.exp(score - peak[:, None])
        kept = tl.exp(most - peak)
        sums = sums * kept + tl.sum(raised, 1)
        value = tl.load(v + keys[:, None] * D + d[None, :], keys[:, None] < length, 0.0)
        total = total * kept[:, None] + tl.dot(raised.to(value.dtype), value)
        most = peak
    tl.store(o + rows[:, None] * D + d[None, :], total / sums[:, None], rows[:, None] < length)


@kind
def attention() -> None:
    q, k, v = (torch.randn(70, 32, device=GPU, dtype=torch.float16) for _ in range(3))
    o = torch.empty(70, 32, device=GPU)
    attention_kernel[(3,)](q, k, v, o, 70, 32**-0.5, D=32, BLOCK=32)
    given = (one.double()[None, None] for one in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    close(o, wanted[0, 0], 5e-3)


# ---- atomics ----
@triton.jit
def atomic_kernel(x, total, largest, bits, lock, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.atomic_add(total + (at % 4), value.to(tl.float32))
    tl.atomic_max(largest, tl.max(value, 0))
    tl.atomic_or(bits, 1 << tl.program_id(0))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@kind
def atomics_and_a_lock() -> None:
    x = torch.randint(0, 1000, (512,), dtype=torch.int32, device=GPU)
    total = torch.zeros(4, device=GPU)
    largest, bits, lock, count = (torch.zeros(1, dtype=torch.int32, device=GPU) for _ in range(4))
    atomic_kernel[(4,)](x, total, largest, bits, lock, count, BLOCK=128)
    close(total, x.reshape(-1, 4).sum(0))
    assert (largest.item(), bits.item(), count.item()) == (x.max().item(), 15, 4)


@triton.jit
def half_atomic_kernel(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.atomic_add(y + at, tl.load(x + at))


@kind
def atomic_add_of_halves() -> None:
    x = torch.ones(64, dtype=torch.float16, device=GPU)
    y = torch.zeros_like(x)
    half_atomic_kernel[(3,)](x, y, BLOCK=64)
    close(y, 3 * x)


@triton.jit
def waiting_kernel(flag, y):  # type: ignore[no-untyped-def]
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(y, 5)
    else:
        tl.atomic_xchg(flag, 1)


@kind
def a_program_waits_for_a_later_one() -> None:
    flag, y = (torch.zeros(1, dtype=torch.int32, device=GPU) for _ in range(2))
    waiting_kernel[(2,)](flag, y)
    assert y.item() == 5


# ---- memory ----
@triton.jit
def block_pointer_kernel(x, y, m, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.make_block_ptr(
        x, (m, n), (n, 1), (tl.program_id(0) * BLOCK, 0), (BLOCK, BLOCK), (1, 0)
    )
    target = tl.make_block_ptr(
        y, (n, m), (m, 1), (0, tl.program_id(0) * BLOCK), (BLOCK, BLOCK), (1, 0)
    )
    value = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    tl.store(target, tl.trans(value), boundary_check=(0, 1))


@kind
def block_pointers() -> None:
    x = torch.rand(40, 16, device=GPU)
    y = torch.empty(16, 40, device=GPU)
    block_pointer_kernel[(3,)](x, y, 40, 16, BLOCK=16)
    close(y, x.T)


@triton.jit
def descriptor_kernel(x, y, m, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.make_tensor_descriptor(x, (m, n), (n, 1), (BLOCK, BLOCK))
    target = tl.make_tensor_descriptor(y, (m, n), (n, 1), (BLOCK, BLOCK))
    target.store([tl.program_id(0) * BLOCK, 0], source.load([tl.program_id(0) * BLOCK, 0]) * 2)


@kind
def device_descriptors() -> None:
    x = torch.rand(40, 16, device=GPU)
    y = torch.empty_like(x)
    descriptor_kernel[(3,)](x, y, 40, 16, BLOCK=16)
    close(y, 2 * x)


@triton.jit
def host_descriptor_kernel(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = [tl.program_id(0) * BLOCK, 0]
    y.store(at, x.load(at) + 1)


@kind
def host_descriptors() -> None:
    x = torch.rand(40, 16, device=GPU)
    y = torch.empty_like(x)
    given = [TensorDescriptor.from_tensor(one, [16, 16]) for one in (x, y)]
    host_descriptor_kernel[(3,)](*given, BLOCK=16)
    close(y, x + 1)


@triton.jit
def pointers_kernel(addresses, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, cache_modifier=".cg", eviction_policy="evict_first", volatile=True)
    tl.store(y + tl.program_id(0) * BLOCK + at, value)


@kind
def addresses_in_a_tensor() -> None:
    parts = [torch.rand(32, device=GPU) for _ in range(3)]
    addresses = torch.tensor([one.data_ptr() for one in parts], device=GPU)
    y = torch.empty(96, device=GPU)
    pointers_kernel[(3,)](addresses, y, BLOCK=32)
    close(y, torch.cat(parts))


# ---- control, arguments, randomness ----
@triton.jit
def _collatz(value):  # type: ignore[no-untyped-def]
    steps = 0
    while value > 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


@triton.jit
def control_kernel(y, pair, WIDTHS: tl.constexpr):  # type: ignore[no-untyped-def]
    first, second = pair
    steps = _collatz(tl.program_id(0) + 1)
    for index in tl.static_range(len(WIDTHS)):
        steps += WIDTHS[index]
    tl.store(y + tl.program_id(0), steps * first + second)


@kind
def loops_functions_and_tuples() -> None:
    y = torch.empty(9, dtype=torch.int32, device=GPU)
    control_kernel[(9,)](y, (2, 3), WIDTHS=(1, 2))
    assert y.tolist() == [2 * (steps + 3) + 3 for steps in (0, 1, 7, 2, 5, 8, 16, 3, 19)]


@triton.autotune([triton.Config({"BLOCK": n}) for n in (64, 128)], key=["n"], use_cuda_graph=True)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x, y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, -tl.load(x + at))
    else:
        tl.store(y + at, -tl.load(x + at, at < n), at < n)


@kind
def autotune_and_heuristics() -> None:
    for n in (128, 100):
        x = torch.rand(n, device=GPU)
        y = torch.empty_like(x)
        tuned_kernel[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        close(y, -x)


@triton.jit
def random_kernel(u, g, i, seed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(u + at, tl.rand(seed, at))
    tl.store(g + at, tl.randn(seed, at))
    tl.store(i + at, tl.randint(seed, at))


@kind
def random_numbers() -> None:
    u, g = torch.empty(1024, device=GPU), torch.empty(1024, device=GPU)
    i = torch.empty(1024, dtype=torch.int32, device=GPU)
    random_kernel[(1,)](u, g, i, 7, BLOCK=1024)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.05
    assert abs(g.mean()) < 0.15 and abs(g.std() - 1) < 0.1 and i.unique().numel() == 1024


@triton.jit
def norm_kernel(x, w, y, n, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * n + at, at < n, 0.0).to(tl.float32)
    mean = tl.sum(value, 0) / n
    apart = tl.where(at < n, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / n + eps)
    tl.store(y + tl.program_id(0) * n + at, apart * scale * tl.load(w + at, at < n), at < n)


@kind
def layer_norm_of_many_warps() -> None:
    for warps in (1, 2, 8, 16):
        x = torch.randn(3, 777, device=GPU, dtype=torch.bfloat16)
        w = torch.rand(777, device=GPU)
        y = torch.empty(3, 777, device=GPU)
        norm_kernel[(3,)](x, w, y, 777, 1e-5, BLOCK=1024, num_warps=warps)
        close(y, torch.nn.functional.layer_norm(x.float(), (777,), w), 1e-4)


@triton.jit
def scaled_kernel(a, sa, b, sb, c, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    s = tl.arange(0, K // 32)
    left = tl.load(a + n[:, None] * K + k[None, :])
    right = tl.load(b + n[None, :] * K + k[:, None])
    scale_a = tl.load(sa + n[:, None] * (K // 32) + s[None, :])
    scale_b = tl.load(sb + n[:, None] * (K // 32) + s[None, :])
    product = tl.dot_scaled(left, scale_a, "e4m3", right, scale_b, "e5m2")
    tl.store(c + n[:, None] * N + n[None, :], product)


@kind
def dot_of_scaled_blocks() -> None:
    a = torch.randn(32, 128, device=GPU).to(torch.float8_e4m3fn)
    b = torch.randn(32, 128, device=GPU).to(torch.float8_e5m2)
    scales = [torch.randint(120, 134, (32, 4), dtype=torch.uint8, device=GPU) for _ in range(2)]
    c = torch.empty(32, 32, device=GPU)
    bytes_of = (one.view(torch.uint8) for one in (a, b))
    scaled_kernel[(1,)](next(bytes_of), scales[0], next(bytes_of), scales[1], c, N=32, K=128)
    wide = [
        one.double() * 2.0 ** (scale.double() - 127).repeat_interleave(32, 1)
        for one, scale in zip((a, b), scales, strict=True)
    ]
    wanted = wide[0] @ wide[1].T
    close(c / wanted.abs().max(), wanted / wanted.abs().max(), 1e-5)


for one in FLOATS:
    KINDS[f"float {one}"] = float_check(one)
for one in INTEGERS:
    KINDS[f"integer {one}"] = integer_check(one)
for one in CASTS:
    KINDS[f"cast {one}"] = cast_check(one)
for one in REDUCTIONS:
    KINDS[f"reduce {one}"] = reduce_check(one)
for one in ("float16", "bfloat16", "float32", "int8", "float8_e5m2"):
    KINDS[f"dot {one}"] = dot_check(one)
if torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx942"):  # the others have none
    KINDS["dot tf32"] = dot_check("float32", "tf32")
KINDS["dot of one warp"] = dot_check("float16", warps=1)


def main() -> None:
    """Run every kind, or those that are named."""
    torch.manual_seed(0)
    answers: dict[str, str] = {}
    for name in sys.argv[1:] or KINDS:
        try:
            KINDS[name]()
            answers[name] = "right"
        except AssertionError as error:
            answers[name] = "wrong: " + " ".join(str(error).split())[:200]
        except Exception as error:
            lines: list[Any] = str(error).splitlines() or [type(error).__name__]
            answers[name] = f"refused: {lines[-1]}"[:200]
        print(f"{name:32} {answers[name]}", flush=True)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
