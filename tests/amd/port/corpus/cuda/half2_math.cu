// Packed halves: HIP has the same functions.
#include <cuda_fp16.h>  // port: api-name

__global__ void axpy(const half2* x, half2* y, float a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}
