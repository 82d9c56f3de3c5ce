#include <cuda_pipeline.h>  // port: library-header

__global__ void staged(const float4* x, float4* y) {
  __shared__ float4 buffer[128];
  __pipeline_memcpy_async(&buffer[threadIdx.x], &x[threadIdx.x], 16);  // port: async-copy
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  y[threadIdx.x] = buffer[127 - threadIdx.x];
}
