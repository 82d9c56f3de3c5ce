"""A product on tensor cores: nothing on ROCm has this interface under this name.

problem: a, b = randn(32, 32).half(), randn(32, 32).half() -> a.float() @ b.float()
"""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>  // port: api-name
#include <mma.h>  // port: library-header
using namespace nvcuda;

__global__ void wmma_matmul_kernel(const half* a, const half* b, float* c, int n) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;  // port: wmma
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < n; k += 16) {
    wmma::load_matrix_sync(fa, a + blockIdx.y * 16 * n + k, n);
    wmma::load_matrix_sync(fb, b + k * n + blockIdx.x * 16, n);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, wmma::mem_row_major);
}

torch::Tensor wmma_matmul(torch::Tensor a, torch::Tensor b) {
  const int n = a.size(0);
  auto c = torch::empty({n, n}, a.options().dtype(torch::kFloat));
  // port: half-wave-block
  wmma_matmul_kernel<<<dim3(n / 16, n / 16), 32>>>(
      reinterpret_cast<const half*>(a.data_ptr<at::Half>()), reinterpret_cast<const half*>(b.data_ptr<at::Half>()), c.data_ptr<float>(), n);
  return c;
}
"""
op = load_inline(
    name="wmma_matmul",
    cpp_sources="torch::Tensor wmma_matmul(torch::Tensor a, torch::Tensor b);",
    cuda_sources=CUDA,
    functions=["wmma_matmul"],
)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return op.wmma_matmul(a, b)
