#include <math_constants.h>  // port: math-constants

__global__ void angles(const float* x, double* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float m = -CUDART_INF_F;
  if (i < n) y[i] = fmaxf(m, x[i]) * CUDART_PI / CUDART_PIO2_F;
}
