#include <cooperative_groups.h>  // port: api-name
namespace cg = cooperative_groups;

__device__ int add_aggregated(int* counter) {
  auto group = cg::coalesced_threads();  // port: active-group
  int base = 0;
  if (group.thread_rank() == 0) base = atomicAdd(counter, group.size());
  return group.shfl(base, 0) + group.thread_rank();
}
