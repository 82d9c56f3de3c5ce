__global__ void add_half(float* x, const float* y) {
#if __CUDA_ARCH__ >= 800  // port: arch-switch
  x[threadIdx.x] += 2.0f * y[threadIdx.x];
#else
  x[threadIdx.x] += y[threadIdx.x] + y[threadIdx.x];
#endif
}

__global__ void both(float* x) {
#if defined(USE_ROCM) || __CUDA_ARCH__ >= 700
  x[threadIdx.x] *= 2.0f;
#endif
}
