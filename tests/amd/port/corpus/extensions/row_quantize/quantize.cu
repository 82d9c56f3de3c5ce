// problem: quantize: x = randn(18, 260) -> x.abs().amax(1).div(127)
#include <torch/extension.h>
#include "reduce.cuh"

__global__ void quantize_kernel(const float* x, int8_t* q, float* scales, int n) {
  __shared__ float parts[32];
  const float* row = x + blockIdx.x * n;
  float most = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, fabsf(row[i]));
  most = warp_all(most, MaxOp{});
  const int warp = threadIdx.x / QUANT_WARP, lane = threadIdx.x % QUANT_WARP;  // port: lane-of-32, lane-of-32
  if (!lane) parts[warp] = most;
  __syncthreads();
  most = warp_all(lane < blockDim.x / QUANT_WARP ? parts[lane] : 0.f, MaxOp{});  // port: lane-of-32
  const float scale = most / 127.f, inverse = most > 0.f ? 127.f / most : 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) q[blockIdx.x * n + i] = (int8_t)__float2int_rn(row[i] * inverse);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

torch::Tensor quantize(torch::Tensor x) {
  x = x.contiguous();
  auto q = torch::empty(x.sizes(), x.options().dtype(torch::kChar));
  auto scales = torch::empty({x.size(0)}, x.options());
  quantize_kernel<<<x.size(0), 160>>>(x.data_ptr<float>(), q.data_ptr<int8_t>(), scales.data_ptr<float>(), x.size(1));
  return scales;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("quantize", &quantize); }
