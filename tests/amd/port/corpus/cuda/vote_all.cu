__global__ void all_small(const float* x, int* flags) {
  bool small = fabsf(x[blockIdx.x * blockDim.x + threadIdx.x]) < 1.0f;
  if (__all_sync(0xffffffff, small)) flags[0] = 1;  // port: warp-vote
  if (__any_sync(0xffffffff, !small)) flags[1] = 1;  // port: warp-vote
}
