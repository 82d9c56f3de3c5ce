#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

template <typename scalar_t>
__global__ void softmax_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int width) {
  extern __shared__ float part[];
  const scalar_t* row = x + (long)blockIdx.x * width;
  float most = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) most = max(most, (float)row[i]);
  for (int o = 16; o > 0; o /= 2) most = max(most, __shfl_xor_sync(0xffffffff, most, o));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
  __syncthreads();
  most = part[0];
  for (int i = 1; i < blockDim.x / 32; ++i) most = fmaxf(most, part[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += __expf((float)row[i] - most);
  for (int o = 16; o > 0; o /= 2) sum += __shfl_down_sync(0xffffffff, sum, o);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = 0.f;
  for (int i = 0; i < blockDim.x / 32; ++i) sum += part[i];
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[(long)blockIdx.x * width + i] = (scalar_t)(expf((float)row[i] - most) / sum);
}

torch::Tensor softmax(torch::Tensor x) {
  x = x.contiguous();
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  const int width = x.size(-1), rows = x.numel() / width, threads = 128;
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "softmax", [&] {
    softmax_kernel<scalar_t><<<rows, threads, threads / 32 * sizeof(float), stream>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), width);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("softmax", &softmax, "row softmax");
}
