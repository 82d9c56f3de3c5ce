// problem: sgd: p, g, m = randn(700), randn(700), randn(700) -> (p - 0.1 * (0.9 * m + g), 0.9 * m + g)
#include "steps.h"
#include <ATen/cuda/CUDAContext.h>  // port: api-name

namespace {
constexpr int kVector = 4;

struct alignas(16) Packed { float v[kVector]; };

__global__ __launch_bounds__(256) void sgd_kernel(const float* p, const float* g, const float* m, float* new_p, float* new_m, float lr, float momentum, int64_t n) {
  const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kVector;
  if (first + kVector <= n) {
    const Packed a = *reinterpret_cast<const Packed*>(p + first), b = *reinterpret_cast<const Packed*>(g + first);
    const Packed c = *reinterpret_cast<const Packed*>(m + first);
    Packed na, nc;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      nc.v[i] = momentum * c.v[i] + b.v[i];
      na.v[i] = a.v[i] - lr * nc.v[i];
    }
    *reinterpret_cast<Packed*>(new_p + first) = na;
    *reinterpret_cast<Packed*>(new_m + first) = nc;
  } else {
    for (int64_t i = first; i < n; ++i) new_m[i] = momentum * m[i] + g[i], new_p[i] = p[i] - lr * new_m[i];
  }
}
}  // namespace

std::vector<at::Tensor> sgd_cuda(const at::Tensor& p, const at::Tensor& g, const at::Tensor& m, double lr, double momentum) {
  auto new_p = at::empty_like(p), new_m = at::empty_like(m);
  const int64_t n = p.numel();
  sgd_kernel<<<(n + 1023) / 1024, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      p.data_ptr<float>(), g.data_ptr<float>(), m.data_ptr<float>(), new_p.data_ptr<float>(), new_m.data_ptr<float>(), lr, momentum, n);
  AT_CUDA_CHECK(cudaGetLastError());
  return {new_p, new_m};
}
