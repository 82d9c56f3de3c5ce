// Tiles of cooperative groups mean the same on AMD.
#include <cooperative_groups.h>  // port: api-name
namespace cg = cooperative_groups;

__global__ void tile_sum(const float* x, float* y) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_down(v, d);
  if (tile.thread_rank() == 0) atomicAdd(y, v);
}
