template <typename T>
__device__ T masked_sum(unsigned mask, T v) {
  for (int d = 16; d; d >>= 1) v += __shfl_down_sync(mask, v, d);  // port: shuffle-width, mask-width
  return v;
}

__global__ void ragged(const float* x, float* y, int n) {
  // port: warp-vote
  unsigned mask = __ballot_sync(0xffffffff, threadIdx.x < n);
  if (threadIdx.x < n) {
    float v = masked_sum(mask, x[threadIdx.x]);
    if (threadIdx.x == 0) *y = v;
  }
}
