__global__ void aggregated_add(int* counter, const int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) {
    unsigned active = __activemask();  // port: active-mask
    int leader = __ffs(active) - 1;
    if ((threadIdx.x & 31) == leader) atomicAdd(counter, __popc(active));  // port: lane-of-32
  }
}
