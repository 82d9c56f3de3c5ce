#include <cuda/std/atomic>  // port: library-header
#include <cuda/barrier>  // port: library-header

__device__ cuda::std::atomic<int> counter;

__global__ void count() { counter.fetch_add(1); }
