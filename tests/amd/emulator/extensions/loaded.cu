#include <cuda_runtime.h>
#include "rows.cuh"

static int width_of(const torch::Tensor& x) { return x.size(1); }

torch::Tensor rows_without_mean(torch::Tensor x) {
  cudaDeviceSynchronize();
  return width_of(x) ? centred(x) : x;
}
