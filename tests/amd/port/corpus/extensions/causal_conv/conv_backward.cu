// problem: conv_backward: g, w = randn(3, 5, 90), randn(5, 4) -> F.conv1d(F.pad(g, (0, 3)), w.flip(1)[:, None], groups=5)
#include "conv.h"

__global__ void conv_backward_kernel(const float* g, const float* w, float* dx, ConvParams params) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y;
  const int at = (blockIdx.z * params.channels + channel) * params.length;
  if (t >= params.length) return;
  float sum = 0.f;
  for (int k = 0; k < kConvWidth; ++k) {
    const int later = t + kConvWidth - 1 - k;
    if (later < params.length) sum += g[at + later] * w[channel * kConvWidth + k];
  }
  dx[at + t] = sum;
}

torch::Tensor backward_cuda(const torch::Tensor& g, const torch::Tensor& w) {
  auto dx = torch::empty_like(g);
  const ConvParams params{(int)g.size(0), (int)g.size(1), (int)g.size(2)};
  const dim3 grid((params.length + 127) / 128, params.channels, params.batch);
  conv_backward_kernel<<<grid, 128>>>(g.data_ptr<float>(), w.data_ptr<float>(), dx.data_ptr<float>(), params);
  return dx;
}
