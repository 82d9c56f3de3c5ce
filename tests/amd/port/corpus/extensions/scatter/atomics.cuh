#pragma once

__device__ __forceinline__ float atomic_max_float(float* at, float v) {
  int* bits = reinterpret_cast<int*>(at);
  int old = *bits, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= v) break;
    old = atomicCAS(bits, assumed, __float_as_int(v));
  } while (assumed != old);
  return __int_as_float(old);
}
