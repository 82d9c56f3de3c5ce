#include <cuda_runtime.h>  // port: api-name

void conditional(cudaGraph_t graph, cudaGraphConditionalHandle* handle) {  // port: graph-node
  cudaGraphConditionalHandleCreate(handle, graph, 1, 0);  // port: graph-node
}
