#include <stdio.h>

__device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    v += __shfl_down_sync(0xffffffff, v, offset);  // port: shuffle-width, mask-width
  }
  return v;
}

__global__ void row_sum(const float* x, float* y, int n) {
  __shared__ float partial[32];
  int lane = threadIdx.x & 31;  // port: lane-of-32
  int warp = threadIdx.x >> 5;  // port: lane-of-32
  float v = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  v = warp_sum(v);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? partial[lane] : 0.0f;  // port: lane-of-32
  if (warp == 0) v = warp_sum(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
