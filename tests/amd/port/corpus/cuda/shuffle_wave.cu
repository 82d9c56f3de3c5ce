// Written for whole waves: only the mask has 32 bits.
__device__ float wave_max(float v) {
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));  // port: mask-width
  return v;
}

__global__ void block_max(const float* x, float* y) {
  float v = wave_max(x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x % warpSize == 0) y[blockIdx.x * (blockDim.x / warpSize) + threadIdx.x / warpSize] = v;
}
