"""Clean: configs for each backend."""

import torch
import triton
import triton.language as tl

FOR_CUDA = [triton.Config({"M": 128, "N": 64, "K": 32}, num_warps=4, num_stages=2)]
FOR_HIP = [
    triton.Config({"M": 128, "N": 64, "K": 32, "waves_per_eu": 2, "matrix_instr_nonkdim": 16})
]


@triton.autotune(configs=FOR_HIP if torch.version.hip else FOR_CUDA, key=["k"])
@triton.jit
def product(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    acc = tl.dot(tl.load(a + tl.arange(0, M * K).reshape(M, K)), tl.load(b + tl.arange(0, K * N).reshape(K, N)))
    tl.store(c + tl.arange(0, M * N).reshape(M, N), acc)
