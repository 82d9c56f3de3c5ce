"""Layer norm with float4 loads; mean and variance in one pass by Welford's rule.

problem: x, w, b = randn(13, 256), rand(256), randn(256) -> F.layer_norm(x, (256,), w, b)
"""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>  // port: api-name

struct Welford { float mean, m2, count; };

__device__ Welford combine(Welford a, Welford b) {
  const float count = a.count + b.count;
  if (count == 0.f) return a;
  const float delta = b.mean - a.mean;
  return {a.mean + delta * b.count / count, a.m2 + b.m2 + delta * delta * a.count * b.count / count, count};
}

template <int kThreads>
__global__ __launch_bounds__(kThreads) void layer_norm_kernel(const float4* x, const float* w, const float* b, float4* y, int n4, float eps) {
  __shared__ Welford parts[kThreads / 32];
  const float4* row = x + blockIdx.x * n4;
  Welford own = {0.f, 0.f, 0.f};
  for (int i = threadIdx.x; i < n4; i += kThreads) {
    const float4 v = __ldg(row + i);
    for (float one : {v.x, v.y, v.z, v.w}) {
      own.count += 1.f;
      const float delta = one - own.mean;
      own.mean += delta / own.count;
      own.m2 += delta * (one - own.mean);
    }
  }
  for (int d = 16; d; d >>= 1) {
    Welford other;
    other.mean = __shfl_down_sync(0xFFFFFFFF, own.mean, d);  // port: shuffle-width, mask-width
    other.m2 = __shfl_down_sync(0xFFFFFFFF, own.m2, d);  // port: shuffle-width, mask-width
    other.count = __shfl_down_sync(0xFFFFFFFF, own.count, d);  // port: shuffle-width, mask-width
    own = combine(own, other);
  }
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = own;  // port: lane-of-32, lane-of-32
  __syncthreads();
  Welford all = parts[0];
  for (int i = 1; i < kThreads / 32; ++i) all = combine(all, parts[i]);
  const float scale = rsqrtf(all.m2 / all.count + eps);
  for (int i = threadIdx.x; i < n4; i += kThreads) {
    float4 v = row[i];
    v.x = (v.x - all.mean) * scale * w[4 * i] + b[4 * i];
    v.y = (v.y - all.mean) * scale * w[4 * i + 1] + b[4 * i + 1];
    v.z = (v.z - all.mean) * scale * w[4 * i + 2] + b[4 * i + 2];
    v.w = (v.w - all.mean) * scale * w[4 * i + 3] + b[4 * i + 3];
    y[blockIdx.x * n4 + i] = v;
  }
}

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int n = x.size(1);
  TORCH_CHECK(n % 4 == 0, "rows must be a multiple of 4");
  layer_norm_kernel<128><<<x.size(0), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const float4*>(x.data_ptr<float>()), w.data_ptr<float>(), b.data_ptr<float>(),
      reinterpret_cast<float4*>(y.data_ptr<float>()), n / 4, 1e-5f);
  return y;
}
"""
op = load_inline(
    name="layer_norm",
    cpp_sources="torch::Tensor layer_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=CUDA,
    functions=["layer_norm"],
)


class ModelNew(torch.nn.Module):
    def forward(self, x, w, b):
        return op.layer_norm(x, w, b)
