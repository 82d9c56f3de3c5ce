"""The four largest values of each row: a warp takes the maximum four times.

problem: x = randn(10, 90) -> x.topk(4).values
"""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <math_constants.h>  // port: math-constants

__global__ void top_k_kernel(const float* x, float* y, int n, int k) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i < n; i += 32) row[i] = x[blockIdx.x * n + i];
  __syncwarp();
  for (int found = 0; found < k; ++found) {
    float best = -INFINITY;
    int where = -1;
    for (int i = threadIdx.x; i < n; i += 32)
      if (row[i] > best) best = row[i], where = i;
    for (int d = 16; d > 0; d >>= 1) {
      float other = __shfl_xor_sync(~0u, best, d);  // port: mask-width
      int other_where = __shfl_xor_sync(~0u, where, d);  // port: mask-width
      if (other > best || (other == best && other_where > where)) best = other, where = other_where;
    }
    if (threadIdx.x == 0) y[blockIdx.x * k + found] = best, row[where] = -INFINITY;
    __syncwarp();
  }
}

torch::Tensor top_k(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty({x.size(0), 4}, x.options());
  // port: half-wave-block
  top_k_kernel<<<x.size(0), 32, x.size(1) * sizeof(float)>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), 4);
  return y;
}
"""
op = load_inline(
    name="top_k",
    cpp_sources="torch::Tensor top_k(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["top_k"],
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return op.top_k(x)
