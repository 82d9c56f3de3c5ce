// RCCL keeps NCCL's names; only the stream's type changes.
#include <nccl.h>
#include <cuda_runtime.h>  // port: api-name

void sum(float* x, size_t n, ncclComm_t comm, cudaStream_t stream) {
  ncclAllReduce(x, x, n, ncclFloat, ncclSum, comm, stream);
}
