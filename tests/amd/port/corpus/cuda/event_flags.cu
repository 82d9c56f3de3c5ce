#include <cuda_runtime.h>  // port: api-name

void mark(cudaEvent_t* one, cudaEvent_t* other) {
  cudaEventCreate(one, cudaEventBlockingSync);  // port: event-flags
  cudaEventCreate(other);
}
