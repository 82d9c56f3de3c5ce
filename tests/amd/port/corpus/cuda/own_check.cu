// A macro of the program's own that looks like CUDA's.
#include <cuda_runtime.h>  // port: api-name
#include <cstdlib>
#define cudaCheck(call) do { if ((call) != cudaSuccess) abort(); } while (0)

void zero(float* x, int n) { cudaCheck(cudaMemset(x, 0, n)); }
