// Already right on 64 lanes: groups of 32 by width, and a mask of 64 bits.
__global__ void group_max(const float* x, float* y) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffffffffffull, v, offset, 32));
  y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
