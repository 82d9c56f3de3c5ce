#include <cuda_runtime.h>  // port: api-name

void mark(cudaEvent_t* one, cudaEvent_t* other) {
  cudaEventCreate(one, cudaEventBlockingSync);  // port: event-flags
  cudaEventCreate(other);
}

void CUDART_CB called(cudaStream_t stream, cudaError_t code, void* given) {}  // port: api-unmapped
