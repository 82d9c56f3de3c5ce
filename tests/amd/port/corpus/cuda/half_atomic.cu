#include <cuda_fp16.h>  // port: api-name

__global__ void scatter(half* out, const float* x, const int* index) {
  atomicAdd(reinterpret_cast<__half*>(out) + index[threadIdx.x], __float2half(x[threadIdx.x]));  // port: half-atomic
}
