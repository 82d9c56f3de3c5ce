#include <cuda.h>  // port: api-name

struct Copy {
  CUtensorMap map;  // port: tensor-map
};

__device__ void load(void* shared, const CUtensorMap* map, int x, int y, unsigned bar) {
  // port: async-copy-ptx
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               :: "l"(shared), "l"(map), "r"(bar), "r"(x), "r"(y));
}
