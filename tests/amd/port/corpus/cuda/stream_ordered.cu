#include <cuda_runtime.h>  // port: api-name

void scratch(cudaStream_t stream, size_t bytes) {
  void* p = nullptr;
  cudaMallocAsync(&p, bytes, stream);  // port: stream-ordered-allocator
  cudaFreeAsync(p, stream);  // port: stream-ordered-allocator
}
