// Calls that hipify renames: one finding for all of them.
#include <cuda_runtime.h>  // port: api-name
#include <cstdio>

__global__ void square(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= x[i];
}

int main() {
  const int n = 1024;
  float* x = nullptr;
  cudaMalloc(&x, n * sizeof(float));
  cudaMemset(x, 0, n * sizeof(float));
  square<<<n / 256, 256>>>(x, n);
  cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) printf("%s\n", cudaGetErrorString(error));
  cudaFree(x);
  return 0;
}
