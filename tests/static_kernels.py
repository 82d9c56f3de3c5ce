"""Triton and HIP kernels for the tests of the static profile, with their problems."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec

HEAD = """
import torch
import triton
import triton.language as tl
"""

ADD = """
@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(out + at, tl.load(x + at, keep) + tl.load(y + at, keep), keep)

def add(x, y, scalars):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return (out,)
"""

SOFTMAX = """
@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + at, at < n, -float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + at, value / tl.sum(value, 0), at < n)

def softmax(x, scalars):
    out = torch.empty_like(x)
    rows, n = x.shape
    softmax_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return (out,)
"""

RMS_NORM = """
@triton.jit
def rms_norm_kernel(x, w, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * n + at, at < n, 0.0).to(tl.float32)
        total += tl.sum(value * value, 0)
    scale = 1.0 / tl.sqrt(total / n + eps)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * n + at, at < n, 0.0).to(tl.float32)
        weight = tl.load(w + at, at < n, 0.0).to(tl.float32)
        tl.store(out + row * n + at, value * scale * weight, at < n)

def rms_norm(x, w, scalars):
    assert x.is_cuda or x.device.type == "cpu"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_kernel[(x.shape[0],)](x, w, out, x.shape[1], scalars[0], BLOCK=256)
    return (out,)
"""

MATMUL = """
CONFIGS = [
    triton.Config({"M": 64, "N": 64, "K": 32}, num_warps=4, num_stages=2),
    triton.Config({"M": 128, "N": 128, "K": 32}, num_warps=4, num_stages=2),
    triton.Config({"M": 32, "N": 32, "K": 64}, num_warps=2, num_stages=1),
]

@triton.autotune(configs=CONFIGS, key=["m", "n", "k"])
@triton.jit
def matmul_kernel(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        deep = start + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * k + deep[None, :], (rows[:, None] < m) & (deep < k), 0.0)
        right = tl.load(
            b + deep[:, None] * n + columns[None, :], (deep[:, None] < k) & (columns < n), 0.0
        )
        sums = tl.dot(left, right, sums)
    place = c + rows[:, None] * n + columns[None, :]
    tl.store(place, sums.to(c.dtype.element_ty), (rows[:, None] < m) & (columns < n))

def matmul(a, b, scalars):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(m, meta["M"]), triton.cdiv(n, meta["N"]))
    matmul_kernel[grid](a, b, c, m, n, k)
    return (c,)
"""

ATTENTION = """
@triton.jit
def attention_kernel(q, k, v, out, t, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    start, head = tl.program_id(0) * M, tl.program_id(1) * t * D
    rows, deep = start + tl.arange(0, M), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + deep[None, :])
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    for at in range(0, start + M, N):
        columns = at + tl.arange(0, N)
        key = tl.load(k + head + columns[None, :] * D + deep[:, None])
        score = tl.dot(query, key) * 0.18033688
        score = tl.where(rows[:, None] >= columns[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        value = tl.load(v + head + columns[:, None] * D + deep[None, :])
        sums = tl.dot(weight.to(value.dtype), value, sums * shrink[:, None])
        top = higher
    tl.store(out + head + rows[:, None] * D + deep[None, :], sums / total[:, None])

def attention(q, k, v, scalars):
    out = torch.empty_like(q)
    b, h, t, d = q.shape
    attention_kernel[(t // 64, b * h)](q, k, v, out, t, D=d, M=64, N=64, num_warps=4)
    return (out,)
"""

SPILL = """
@triton.jit
def spill_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, 0.0)
    tl.store(out + at, value / tl.sum(value, 0), at < n)

def spill(x, scalars):
    out = torch.empty_like(x)
    spill_kernel[(1,)](x, out, x.numel(), BLOCK=8192, num_warps=1)
    return (out,)
"""


def triton_kernel(entry: str, body: str) -> Kernel:
    return Kernel(name=entry, language="triton", source=HEAD + body, entry=entry)


KERNELS = {
    "add": ADD,
    "softmax": SOFTMAX,
    "rms_norm": RMS_NORM,
    "matmul": MATMUL,
    "attention": ATTENTION,
    "spill": SPILL,
}


def add(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x + y,)


def softmax(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.softmax(-1),)


def rms_norm(x: Tensor, w: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + scalars[0]) * w,)


def matmul(a: Tensor, b: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (a @ b,)


def attention(q: Tensor, k: Tensor, v: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),)


def spill(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x / x.sum(),)


def _case(name: str, dtype: str, *shapes: tuple[int, ...], **options: object) -> Case:
    inputs = tuple(TensorSpec(shape=shape, dtype=dtype) for shape in shapes)
    return Case(name=name, inputs=inputs, scalars=(1e-5,), **options)  # type: ignore[arg-type]


def problem(name: str) -> Problem:
    """One with a small case that the interpreter takes on, and one that fills a GPU."""
    dtype, small, large = {
        "add": ("float32", ((3, 700), (3, 700)), ((8192, 8192), (8192, 8192))),
        "softmax": ("float32", ((5, 300),), ((8192, 4096),)),
        "rms_norm": ("float32", ((5, 300), (300,)), ((8192, 4096), (4096,))),
        "matmul": ("bfloat16", ((70, 64), (64, 40)), ((4096, 2048), (2048, 8192))),
        "attention": ("bfloat16", ((1, 2, 128, 64),) * 3, ((2, 16, 4096, 64),) * 3),
        "spill": ("float32", ((8000,),), ((8000,),)),
    }[name]
    cases = (
        _case("small", dtype, *small, timed=True, tier="ci"),
        _case("large", dtype, *large, timed=True, tier="gpu"),
    )
    return Problem(name=name, reference=f"static_kernels:{name}", cases=cases)


HIP = """
#include <hip/hip_runtime.h>
extern "C" __global__ __launch_bounds__(256) void row_scale(const float* x, float* y, int n) {
  __shared__ float part[16];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = x[blockIdx.x * n + i];
    sum += v * v;
  }
  for (int m = 16; m; m /= 2) sum += __shfl_xor(sum, m);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) sum += part[i];
    y[blockIdx.x] = rsqrtf(sum) + expf(-sum);
  }
}
"""


def hip_kernel(source: str = HIP) -> Kernel:
    return Kernel(name="row_scale", language="hip", source=source, entry="row_scale")
