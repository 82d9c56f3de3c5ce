// A reduction written out for 32 lanes.
__device__ __forceinline__ int warp_min(int v) {
  v = min(v, __shfl_xor_sync(~0u, v, 16));  // port: mask-width
  v = min(v, __shfl_xor_sync(~0u, v, 8));  // port: mask-width
  v = min(v, __shfl_xor_sync(~0u, v, 4));  // port: mask-width
  v = min(v, __shfl_xor_sync(~0u, v, 2));  // port: mask-width
  v = min(v, __shfl_xor_sync(~0u, v, 1));  // port: mask-width
  return v;
}

__global__ void minimum(const int* x, int* y) {
  int v = warp_min(x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
