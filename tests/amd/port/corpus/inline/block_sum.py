"""Sums of rows: shuffles in a warp, then over the warps of a block.

problem: x = randn(19, 700) -> x.sum(1)
"""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>  // port: api-name

__inline__ __device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);  // port: shuffle-width, mask-width
  return v;
}

__inline__ __device__ float block_total(float v) {
  static __shared__ float shared[32];
  int lane = threadIdx.x % 32;  // port: lane-of-32
  int wid = threadIdx.x / 32;  // port: lane-of-32
  v = warp_sum(v);
  if (lane == 0) shared[wid] = v;
  __syncthreads();
  v = (threadIdx.x < blockDim.x / 32) ? shared[lane] : 0.0f;  // port: lane-of-32
  if (wid == 0) v = warp_sum(v);
  return v;
}

__global__ void block_sum_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  float v = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[(size_t)blockIdx.x * n + i];
  v = block_total(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}

torch::Tensor block_sum(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty({x.size(0)}, x.options());
  block_sum_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""
op = load_inline(
    name="block_sum",
    cpp_sources="torch::Tensor block_sum(torch::Tensor x);",
    cuda_sources=CUDA,
    functions=["block_sum"],
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return op.block_sum(x)
