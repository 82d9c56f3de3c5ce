"""A module with a CUDA kernel in a string, as KernelBench's problems are answered.

problem: x = randn(500) -> x.relu()
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>  // port: api-name

__global__ void relu_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > 0 ? x[i] : 0;
}

torch::Tensor relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  int n = x.numel();
  relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""

module = load_inline(
    name="relu",
    cpp_sources="torch::Tensor relu(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["relu"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],  # port: nvcc-flag
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.relu(x)
