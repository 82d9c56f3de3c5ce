// problem: conv_forward: x, w = randn(3, 5, 90), randn(5, 4) -> F.conv1d(F.pad(x, (3, 0)), w[:, None], groups=5)
#include "conv.h"

template <int kWidth, int kThreads>
__global__ __launch_bounds__(kThreads) void conv_forward_kernel(const float* x, const float* w, float* y, ConvParams params) {
  __shared__ float window[kThreads + kWidth - 1];
  const int channel = blockIdx.y, at = (blockIdx.z * params.channels + channel) * params.length;
  const int first = blockIdx.x * kThreads;
  for (int i = threadIdx.x; i < kThreads + kWidth - 1; i += kThreads) {
    const int t = first + i - (kWidth - 1);
    window[i] = t >= 0 && t < params.length ? x[at + t] : 0.f;
  }
  __syncthreads();
  if (first + threadIdx.x >= params.length) return;
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sum += window[threadIdx.x + k] * w[channel * kWidth + k];
  y[at + first + threadIdx.x] = sum;
}

torch::Tensor forward_cuda(const torch::Tensor& x, const torch::Tensor& w) {
  auto y = torch::empty_like(x);
  const ConvParams params{(int)x.size(0), (int)x.size(1), (int)x.size(2)};
  const dim3 grid((params.length + kConvThreads - 1) / kConvThreads, params.channels, params.batch);
  auto kernel = &conv_forward_kernel<kConvWidth, kConvThreads>;
  kernel<<<grid, kConvThreads>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), params);
  return y;
}
