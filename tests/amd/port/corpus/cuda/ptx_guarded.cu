// PTX for NVIDIA only: the other branch is for AMD. Nothing to find.
__device__ float fast_exp2(float x) {
#if defined(USE_ROCM) || defined(__HIP_PLATFORM_AMD__)
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__global__ void powers(float* x) { x[threadIdx.x] = fast_exp2(x[threadIdx.x]); }
