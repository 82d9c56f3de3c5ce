__global__ void count_positive(const float* x, int* counts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned votes = __ballot_sync(0xffffffff, i < n && x[i] > 0);  // port: warp-vote
  if (threadIdx.x % 32 == 0) atomicAdd(counts, __popc(votes));  // port: lane-of-32
}
