// Graphs by capture are HIP's too.
#include <cuda_runtime.h>  // port: api-name

void capture(cudaStream_t stream, cudaGraphExec_t* exec) {
  cudaGraph_t graph;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(exec, graph, nullptr, nullptr, 0);
}
