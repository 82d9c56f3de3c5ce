#include <cooperative_groups.h>  // port: api-name
namespace cg = cooperative_groups;

__global__ void __cluster_dims__(2, 1, 1) pair(float* x) {  // port: thread-block-cluster
  auto cluster = cg::this_cluster();  // port: thread-block-cluster
  cluster.sync();
  x[threadIdx.x] += 1.0f;
}
