__global__ void histogram(const int* keys, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    unsigned same = __match_any_sync(__activemask(), keys[i]);  // port: match-mask, active-mask
    int leader = __ffs(same) - 1;
    if (threadIdx.x % 32 == leader) atomicAdd(&bins[keys[i]], __popc(same));  // port: lane-of-32
  }
}
