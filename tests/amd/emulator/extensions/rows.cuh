// Rows without their mean: two kernels and the function that launches them.
#pragma once
#include <torch/extension.h>
#include <c10/hip/HIPException.h>
#include <c10/hip/HIPStream.h>
#include <hip/hip_runtime.h>

template <typename T> __device__ T block_sum(T value, T* part) {
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  return part[0];
}

template <typename T> __global__ void means(const T* x, float* mean, int width) {
  extern __shared__ float part[];
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += static_cast<float>(x[(int64_t)blockIdx.x * width + i]);
  sum = block_sum(sum, part);
  if (threadIdx.x == 0) mean[blockIdx.x] = sum / width;
}

template <typename T> __global__ void centred_rows(const T* x, const float* mean, T* y, int64_t count, int width) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = static_cast<T>(static_cast<float>(x[i]) - mean[i / width]);
}

static torch::Tensor centred(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 2, "x lies on the GPU and has rows");
  const auto given = x.contiguous();
  const int rows = given.size(0), width = given.size(1);
  auto mean = torch::empty({rows}, given.options().dtype(torch::kFloat));
  auto y = torch::empty_like(given);
  const hipStream_t stream = c10::hip::getCurrentHIPStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(given.scalar_type(), "centred", [&] {
    hipLaunchKernelGGL(means<scalar_t>, dim3(rows), dim3(64), 64 * sizeof(float), stream, given.data_ptr<scalar_t>(),
                       mean.data_ptr<float>(), width);
    centred_rows<scalar_t><<<(given.numel() + 127) / 128, 128, 0, stream>>>(
        given.data_ptr<scalar_t>(), mean.data_ptr<float>(), y.data_ptr<scalar_t>(), given.numel(), width);
  });
  C10_HIP_KERNEL_LAUNCH_CHECK();
  return y;
}
