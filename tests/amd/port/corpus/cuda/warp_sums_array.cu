// Clean: an array of 32 holds one sum a warp, and a block has at most 32 of them on either platform.
__global__ void block_sums(const float* x, float* y) {
  __shared__ float sums[32];
  const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = warpSize / 2; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);  // port: mask-width
  if (lane == 0) sums[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / warpSize ? sums[lane] : 0.0f;
  if (warp == 0) {
    for (int d = warpSize / 2; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);  // port: mask-width
    if (lane == 0) y[blockIdx.x] = v;
  }
}
