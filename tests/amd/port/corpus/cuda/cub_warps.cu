#include <cub/cub.cuh>  // port: api-name

__global__ void sums(const float* x, float* y, int* before) {
  typedef cub::WarpReduce<float> Reduce;  // port: warp-collective
  typedef cub::WarpReduce<float, 16> Half;
  __shared__ Reduce::TempStorage held[4];
  __shared__ cub::WarpScan<int>::TempStorage counts[4];  // port: warp-collective
  const int row = threadIdx.y, at = row * blockDim.x + threadIdx.x;
  const float sum = Reduce(held[row]).Sum(x[at]);
  int own;
  cub::WarpScan<int>(counts[row]).ExclusiveSum(x[at] > 0.f, own);  // port: warp-collective
  if (threadIdx.x == 0) y[row] = sum;
  before[at] = own;
}
