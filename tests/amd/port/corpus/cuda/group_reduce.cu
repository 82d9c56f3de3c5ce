#include <cooperative_groups.h>  // port: api-name
#include <cooperative_groups/reduce.h>  // port: library-header
namespace cg = cooperative_groups;

__global__ void sum(const int* x, int* y) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  int v = cg::reduce(tile, x[threadIdx.x], cg::plus<int>());  // port: group-collective
  if (tile.thread_rank() == 0) atomicAdd(y, v);
}
