#include <cub/cub.cuh>  // port: api-name

__global__ void block_sum(const float* x, float* y) {
  using Reduce = cub::BlockReduce<float, 256>;
  __shared__ typename Reduce::TempStorage storage;
  float v = Reduce(storage).Sum(x[blockIdx.x * 256 + threadIdx.x]);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
