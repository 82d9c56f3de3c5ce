// Softmax over the last dimension, a CUDA extension for torch: one block of 256 threads a row.
//
// It counts warps of 32 lanes, as CUDA code does, so it is wrong on a GPU whose waves have 64 until
// it is ported.
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ float warp_max(float v) {
  for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffff, v, step));
  return v;
}

__device__ float warp_sum(float v) {
  for (int step = 16; step > 0; step >>= 1) v += __shfl_down_sync(0xffffffff, v, step);
  return v;
}

template <bool Max>
__device__ float block_reduce(float v) {
  __shared__ float parts[kWarps];
  __shared__ float whole;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  v = Max ? warp_max(v) : warp_sum(v);
  if (lane == 0) parts[warp] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = parts[0];
    for (int i = 1; i < kWarps; ++i) all = Max ? fmaxf(all, parts[i]) : all + parts[i];
    whole = all;
  }
  __syncthreads();
  const float found = whole;
  __syncthreads();
  return found;
}

template <typename T>
__global__ void softmax_rows(const T* __restrict__ x, T* __restrict__ y, int64_t columns) {
  const T* row = x + blockIdx.x * columns;
  T* out = y + blockIdx.x * columns;
  float most = -INFINITY;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) most = fmaxf(most, float(row[i]));
  most = block_reduce<true>(most);
  float sum = 0.f;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += expf(float(row[i]) - most);
  sum = block_reduce<false>(sum);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) out[i] = T(expf(float(row[i]) - most) / sum);
}

torch::Tensor softmax(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on a GPU");
  auto rows = x.contiguous();
  auto y = torch::empty_like(rows);
  const int64_t columns = rows.size(-1), count = rows.numel() / columns;
  auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "softmax", [&] {
    softmax_rows<scalar_t><<<count, kThreads, 0, stream>>>(
        rows.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), columns);
  });
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("softmax", &softmax, "softmax of the last dimension"); }
