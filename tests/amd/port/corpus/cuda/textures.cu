#include <cuda_runtime.h>  // port: api-name

__global__ void sample(cudaTextureObject_t image, float* y, int width) {
  int x = threadIdx.x;
  y[x] = tex2D<float>(image, x + 0.5f, 0.5f);  // port: texture
  y[x] += tex1Dfetch<float>(image, x);  // port: texture
}
