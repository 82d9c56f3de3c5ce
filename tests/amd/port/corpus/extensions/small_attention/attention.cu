// problem: attention: q, k, v = randn(2, 3, 20, 32), randn(2, 3, 20, 32), randn(2, 3, 20, 32) -> F.scaled_dot_product_attention(q, k, v, is_causal=True)
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>  // port: api-name

constexpr unsigned kWhole = 0xffffffffu;
constexpr int kRows = 4;

template <int kDim>
__global__ void __launch_bounds__(kRows * 32, 4) attention_kernel(const float* q, const float* k, const float* v, float* o, int length, float scale) {  // port: launch-bounds
  static_assert(kDim % 32 == 0, "a lane holds kDim / 32 values");
  extern __shared__ __align__(16) unsigned char memory[];
  float* keys = reinterpret_cast<float*>(memory);
  float* values = keys + 32 * kDim;
  const int lane = threadIdx.x % 32, row = blockIdx.x * kRows + threadIdx.x / 32;  // port: lane-of-32, lane-of-32
  const size_t base = (size_t)blockIdx.y * length * kDim;
  float own[kDim / 32], sum[kDim / 32] = {}, most = -INFINITY, total = 0.f;
  for (int i = 0; i < kDim / 32; ++i) own[i] = row < length ? q[base + row * kDim + i * 32 + lane] * scale : 0.f;
  for (int start = 0; start < length; start += 32) {
    const int count = min(32, length - start);
    for (int i = threadIdx.x; i < count * kDim; i += blockDim.x) keys[i] = k[base + start * kDim + i], values[i] = v[base + start * kDim + i];
    __syncthreads();
    for (int j = 0; j < count && start + j <= row; ++j) {
      float score = 0.f;
      for (int i = 0; i < kDim / 32; ++i) score += own[i] * keys[j * kDim + i * 32 + lane];
      for (int d = 16; d > 0; d /= 2) score += __shfl_xor_sync(kWhole, score, d);  // port: mask-width
      const float next = fmaxf(most, score), old = __expf(most - next), now = __expf(score - next);
      total = total * old + now;
      for (int i = 0; i < kDim / 32; ++i) sum[i] = sum[i] * old + now * values[j * kDim + i * 32 + lane];
      most = next;
    }
    __syncthreads();
  }
  if (row < length)
    for (int i = 0; i < kDim / 32; ++i) o[base + row * kDim + i * 32 + lane] = sum[i] / total;
}

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  q = q.contiguous(), k = k.contiguous(), v = v.contiguous();
  auto o = torch::empty_like(q);
  const int length = q.size(2), dim = q.size(3);
  TORCH_CHECK(dim == 32 || dim == 64, "head dimensions are 32 and 64");
  const size_t bytes = 2 * 32 * dim * sizeof(float);
  const dim3 grid((length + kRows - 1) / kRows, q.size(0) * q.size(1));
  auto kernel = dim == 32 ? attention_kernel<32> : attention_kernel<64>;
  if (bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);  // port: kernel-pointer
  kernel<<<grid, kRows * 32, bytes, at::cuda::getCurrentCUDAStream()>>>(
      q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), length, 1.f / sqrtf(dim));
  return o;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("attention", &attention); }
