#include <cuda_fp8.h>  // port: library-header

__global__ void quantize(const float* x, __nv_fp8_e4m3* y, float scale) {  // port: fp8-format
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __nv_fp8_e4m3(fminf(fmaxf(x[i] / scale, -448.0f), 448.0f));
}
