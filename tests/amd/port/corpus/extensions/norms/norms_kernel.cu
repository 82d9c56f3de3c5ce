// problem: norms: x = randn(17, 300) -> x.norm(dim=1)
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>  // port: api-name
#include "warp.cuh"

template <typename scalar_t>
__global__ void norms_kernel(const scalar_t* x, scalar_t* y, int n) {
  __shared__ float partial[kWarp];
  float v = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += float(x[blockIdx.x * n + i]) * float(x[blockIdx.x * n + i]);
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;  // port: lane-of-32, lane-of-32
  __syncthreads();
  if (threadIdx.x < kWarp) {
    v = warp_sum(threadIdx.x < blockDim.x / kWarp ? partial[threadIdx.x] : 0.0f);  // port: lane-of-32
    if (threadIdx.x == 0) y[blockIdx.x] = sqrtf(v);
  }
}

torch::Tensor norms_cuda(torch::Tensor x) {
  auto y = torch::empty({x.size(0)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "norms", ([&] {
    norms_kernel<scalar_t><<<x.size(0), 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.size(1));
  }));
  return y;
}
