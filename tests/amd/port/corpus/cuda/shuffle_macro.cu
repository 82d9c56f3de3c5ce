// The shuffle hides in a macro.
// port: shuffle-width, mask-width
#define SHFL_DOWN(v, d) __shfl_down_sync(0xffffffff, (v), (d))
#define REDUCE(v)           \
  v += SHFL_DOWN(v, 16);    \
  v += SHFL_DOWN(v, 8);     \
  v += SHFL_DOWN(v, 4);     \
  v += SHFL_DOWN(v, 2);     \
  v += SHFL_DOWN(v, 1);

__global__ void sum32(const float* x, float* y) {
  float v = x[threadIdx.x];
  REDUCE(v)
  if (threadIdx.x == 0) *y = v;
}
