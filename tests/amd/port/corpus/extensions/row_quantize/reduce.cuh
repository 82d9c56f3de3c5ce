#pragma once
#define QUANT_WARP 32

template <typename T, typename Op>
__device__ __forceinline__ T warp_all(T v, Op op) {
#pragma unroll
  for (int mask = QUANT_WARP / 2; mask > 0; mask >>= 1) v = op(v, __shfl_xor_sync(0xffffffff, v, mask));  // port: mask-width
  return v;
}

struct MaxOp {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
