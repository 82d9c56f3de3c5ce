// port: launch-bounds
__global__ void __launch_bounds__(256, 4) add(float* x, const float* y) {
  x[blockIdx.x * 256 + threadIdx.x] += y[blockIdx.x * 256 + threadIdx.x];
}

__global__ void __launch_bounds__(1024) subtract(float* x, const float* y) {
  x[blockIdx.x * 1024 + threadIdx.x] -= y[blockIdx.x * 1024 + threadIdx.x];
}

__global__ void __launch_bounds__(128, 1) negate(float* x) { x[threadIdx.x] = -x[threadIdx.x]; }
