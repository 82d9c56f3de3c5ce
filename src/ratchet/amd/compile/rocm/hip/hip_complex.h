// Complex numbers for a machine without ROCm: HIP's names for pairs of floats and doubles.
#pragma once
#if __has_include_next(<hip/hip_complex.h>)
#include_next <hip/hip_complex.h>
#else
#include <hip/hip_runtime.h>
#define RATCHET_COMPLEX(N, T, t, f)                                                                  \
  typedef T N##Complex;                                                                             \
  static inline __host__ __device__ T make_##N##Complex(t a, t b) { return make_##T(a, b); }         \
  static inline __host__ __device__ t hipCreal##f(T a) { return a.x; }                               \
  static inline __host__ __device__ t hipCimag##f(T a) { return a.y; }                               \
  static inline __host__ __device__ T hipConj##f(T a) { return make_##T(a.x, -a.y); }                \
  static inline __host__ __device__ T hipCadd##f(T a, T b) { return make_##T(a.x + b.x, a.y + b.y); } \
  static inline __host__ __device__ T hipCsub##f(T a, T b) { return make_##T(a.x - b.x, a.y - b.y); } \
  static inline __host__ __device__ T hipCmul##f(T a, T b) {                                         \
    return make_##T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);                                   \
  }                                                                                                 \
  static inline __host__ __device__ T hipCdiv##f(T a, T b) {                                         \
    const t all = b.x * b.x + b.y * b.y;                                                            \
    return make_##T((a.x * b.x + a.y * b.y) / all, (a.y * b.x - a.x * b.y) / all);                   \
  }                                                                                                 \
  static inline __host__ __device__ t hipCabs##f(T a) { return (t)sqrt((double)a.x * a.x + (double)a.y * a.y); }
RATCHET_COMPLEX(hipFloat, float2, float, f)
RATCHET_COMPLEX(hipDouble, double2, double, )
typedef hipFloatComplex hipComplex;
static inline __host__ __device__ hipComplex make_hipComplex(float a, float b) { return make_float2(a, b); }
#undef RATCHET_COMPLEX
#endif
