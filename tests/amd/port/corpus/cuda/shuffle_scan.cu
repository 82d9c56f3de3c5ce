#define WARP_SIZE 32
#define FULL_MASK 0xffffffffu

__global__ void scan(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x % WARP_SIZE;  // port: lane-of-32
  int v = i < n ? x[i] : 0;
  for (int d = 1; d < WARP_SIZE; d *= 2) {
    int other = __shfl_up_sync(FULL_MASK, v, d);  // port: shuffle-width, mask-width
    if (lane >= d) v += other;
  }
  if (i < n) y[i] = v;
}
