// Asks for warpSize and counts 32s too: two answers on CDNA.
__global__ void mixed(const float* x, float* y) {
  __shared__ float partial[64];
  int lane = threadIdx.x & 31;  // port: mixed-warp-size
  int warp = threadIdx.x >> 5;  // port: mixed-warp-size
  float v = x[threadIdx.x];
  for (int d = warpSize / 2; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffffffffffull, v, d);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  if (threadIdx.x == 0) *y = partial[0];
}
