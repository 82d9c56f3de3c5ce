// Clean: the warp's size is chosen for each platform, and AMD's branch is right.
#ifdef USE_ROCM
#define SHFL_XOR(v, m) __shfl_xor(v, m, 32)
#else
#define SHFL_XOR(v, m) __shfl_xor_sync(0xffffffff, v, m)
#endif

__global__ void sum32(float* x) {
  float v = x[threadIdx.x];
  for (int m = 16; m > 0; m /= 2) v += SHFL_XOR(v, m);
  x[threadIdx.x] = v;
}

template <typename T>
__device__ T next_lane(T v) {
#ifndef USE_ROCM
  return __shfl_down_sync(0xffffffff, v, 1, 32);
#else
  return __shfl_down(v, 1);
#endif
}
