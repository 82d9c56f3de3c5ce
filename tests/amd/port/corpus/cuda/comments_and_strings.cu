// Clean: __shfl_sync(0xffffffff, v, 0), asm("mov.u32"), cudaMalloc and 32 in comments and strings.
/* __ballot_sync(0xffffffff, p); nvcuda::wmma */
__device__ const char* kHelp = "cudaMalloc __shfl_down_sync(0xffffffff, v, 16) cp.async";

__global__ void nothing(float* x) { x[threadIdx.x] = 0.0f; }
