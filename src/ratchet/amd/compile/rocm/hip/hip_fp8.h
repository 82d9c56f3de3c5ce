// Floats of 8 bits for a machine without ROCm, by HIP's and CUDA's names: OCP's and AMD's FNUZ, which has one zero, one
// NaN, no infinities and an exponent that is one smaller.
#ifndef RATCHET_HIP_HIP_FP8_H
#define RATCHET_HIP_HIP_FP8_H
#include <hip/hip_runtime.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#define RATCHET_EIGHT static inline __host__ __device__

typedef unsigned char __hip_fp8_storage_t;
typedef unsigned short __hip_fp8x2_storage_t;
typedef unsigned int __hip_fp8x4_storage_t;
typedef enum { __HIP_NOSAT = 0, __HIP_SATFINITE = 1 } __hip_saturation_t;
typedef enum { __HIP_E4M3 = 0, __HIP_E5M2 = 1, __HIP_E4M3_FNUZ = 2, __HIP_E5M2_FNUZ = 3 } __hip_fp8_interpretation_t;

namespace ratchet {
RATCHET_EIGHT int fp8_bits(__hip_fp8_interpretation_t kind) { return kind == __HIP_E4M3 || kind == __HIP_E4M3_FNUZ ? 3 : 2; }
RATCHET_EIGHT bool fp8_fnuz(__hip_fp8_interpretation_t kind) { return kind >= __HIP_E4M3_FNUZ; }
RATCHET_EIGHT int fp8_bias(__hip_fp8_interpretation_t kind) {
  return (fp8_bits(kind) == 3 ? 7 : 15) + (fp8_fnuz(kind) ? 1 : 0);
}
RATCHET_EIGHT float fp8_float(__hip_fp8_storage_t code, __hip_fp8_interpretation_t kind) {
  const int bits = fp8_bits(kind), most = bits == 3 ? 15 : 31;
  const int exponent = (code & 127) >> bits, low = code & ((1 << bits) - 1);
  if (fp8_fnuz(kind) ? code == 128 : exponent == most && (bits == 3 ? low == 7 : low != 0)) return __builtin_nanf("");
  float v;
  if (!fp8_fnuz(kind) && bits == 2 && exponent == most) {
    v = __builtin_inff();
  } else {
    const int power = (exponent ? exponent : 1) - fp8_bias(kind) - bits + 127;
    const unsigned scale = (unsigned)power << 23;
    __builtin_memcpy(&v, &scale, 4);
    v *= (float)(low | (exponent ? 1 << bits : 0));
  }
  return code & 128 ? -v : v;
}
// To the nearest, ties to even.
RATCHET_EIGHT __hip_fp8_storage_t fp8_code(float v, bool saturates, __hip_fp8_interpretation_t kind) {
  unsigned word;
  __builtin_memcpy(&word, &v, 4);
  const int bits = fp8_bits(kind), bias = fp8_bias(kind);
  const bool fnuz = fp8_fnuz(kind);
  const __hip_fp8_storage_t sign = word >> 31 ? 128 : 0, none = fnuz ? 128 : 127;
  const unsigned size = word & 0x7fffffffu;
  if (size > 0x7f800000u) return fnuz ? none : sign | none;
  const __hip_fp8_storage_t most = fnuz ? 127 : bits == 3 ? 126 : 123;
  const __hip_fp8_storage_t beyond = saturates ? sign | most : fnuz ? none : bits == 3 ? sign | 127 : sign | 124;
  if (size == 0x7f800000u) return beyond;
  int exponent = (int)(size >> 23) - 127;
  if (exponent < 1 - bias) exponent = 1 - bias;
  if (exponent > 16) return beyond;
  float steps, unit;
  const unsigned by = (unsigned)(bits - exponent + 127) << 23, whole = size;
  __builtin_memcpy(&unit, &by, 4), __builtin_memcpy(&steps, &whole, 4);
  int count = (int)__builtin_rintf(steps * unit);  // exact, for `unit` is a power of two
  if (count >> (bits + 1)) count >>= 1, ++exponent;
  const int code = count >> bits ? ((exponent + bias) << bits) + (count & ((1 << bits) - 1)) : count;
  if (code > most) return beyond;
  return fnuz && !code ? 0 : sign | (__hip_fp8_storage_t)code;
}
}  // namespace ratchet

RATCHET_EIGHT __hip_fp8_storage_t __hip_cvt_float_to_fp8(float v, __hip_saturation_t sat, __hip_fp8_interpretation_t kind) {
  return ratchet::fp8_code(v, sat == __HIP_SATFINITE, kind);
}
RATCHET_EIGHT __hip_fp8_storage_t __hip_cvt_double_to_fp8(double v, __hip_saturation_t sat, __hip_fp8_interpretation_t kind) {
  return ratchet::fp8_code((float)v, sat == __HIP_SATFINITE, kind);
}
RATCHET_EIGHT __hip_fp8x2_storage_t __hip_cvt_float2_to_fp8x2(float2 v, __hip_saturation_t sat,
                                                              __hip_fp8_interpretation_t kind) {
  return __hip_cvt_float_to_fp8(v.x, sat, kind) | __hip_cvt_float_to_fp8(v.y, sat, kind) << 8;
}
RATCHET_EIGHT __hip_fp8_storage_t __hip_cvt_halfraw_to_fp8(__half_raw v, __hip_saturation_t sat,
                                                           __hip_fp8_interpretation_t kind) {
  return ratchet::fp8_code((float)v, sat == __HIP_SATFINITE, kind);
}
RATCHET_EIGHT __half_raw __hip_cvt_fp8_to_halfraw(__hip_fp8_storage_t code, __hip_fp8_interpretation_t kind) {
  return (__half_raw)ratchet::fp8_float(code, kind);
}

#define RATCHET_FP8(T, T2, T4, kind)                                                                          \
  struct T {                                                                                                  \
    __hip_fp8_storage_t __x;                                                                                  \
    static constexpr __hip_fp8_interpretation_t __default_interpret = kind;                                   \
    static constexpr __hip_saturation_t __default_saturation = __HIP_SATFINITE;                               \
    T() = default;                                                                                            \
    template <typename V, typename std::enable_if<std::is_arithmetic<V>::value, int>::type = 0>               \
    explicit __host__ __device__ T(V v) : __x(ratchet::fp8_code((float)v, true, kind)) {}                     \
    explicit __host__ __device__ T(__half v) : __x(ratchet::fp8_code((float)v, true, kind)) {}                \
    explicit __host__ __device__ T(__hip_bfloat16 v) : __x(ratchet::fp8_code((float)v, true, kind)) {}        \
    __host__ __device__ operator float() const { return ratchet::fp8_float(__x, kind); }                      \
    explicit __host__ __device__ operator __half() const { return __half(ratchet::fp8_float(__x, kind)); }    \
    explicit __host__ __device__ operator __hip_bfloat16() const {                                            \
      return __hip_bfloat16(ratchet::fp8_float(__x, kind));                                                   \
    }                                                                                                         \
  };                                                                                                          \
  struct T2 {                                                                                                 \
    __hip_fp8x2_storage_t __x;                                                                                \
    T2() = default;                                                                                           \
    explicit __host__ __device__ T2(float2 v) : __x(__hip_cvt_float2_to_fp8x2(v, __HIP_SATFINITE, kind)) {}   \
    __host__ __device__ operator float2() const {                                                             \
      return make_float2(ratchet::fp8_float(__x & 255, kind), ratchet::fp8_float(__x >> 8, kind));            \
    }                                                                                                         \
  };                                                                                                          \
  struct T4 {                                                                                                 \
    __hip_fp8x4_storage_t __x;                                                                                \
    T4() = default;                                                                                           \
    explicit __host__ __device__ T4(float4 v)                                                                 \
        : __x(T2(make_float2(v.x, v.y)).__x | (unsigned)T2(make_float2(v.z, v.w)).__x << 16) {}               \
    __host__ __device__ operator float4() const {                                                             \
      return make_float4(ratchet::fp8_float(__x & 255, kind), ratchet::fp8_float(__x >> 8 & 255, kind),       \
                         ratchet::fp8_float(__x >> 16 & 255, kind), ratchet::fp8_float(__x >> 24, kind));     \
    }                                                                                                         \
  };
RATCHET_FP8(__hip_fp8_e4m3, __hip_fp8x2_e4m3, __hip_fp8x4_e4m3, __HIP_E4M3)
RATCHET_FP8(__hip_fp8_e5m2, __hip_fp8x2_e5m2, __hip_fp8x4_e5m2, __HIP_E5M2)
RATCHET_FP8(__hip_fp8_e4m3_fnuz, __hip_fp8x2_e4m3_fnuz, __hip_fp8x4_e4m3_fnuz, __HIP_E4M3_FNUZ)
RATCHET_FP8(__hip_fp8_e5m2_fnuz, __hip_fp8x2_e5m2_fnuz, __hip_fp8x4_e5m2_fnuz, __HIP_E5M2_FNUZ)

typedef __hip_fp8_e4m3 __nv_fp8_e4m3;
typedef __hip_fp8_e5m2 __nv_fp8_e5m2;
typedef __hip_fp8x2_e4m3 __nv_fp8x2_e4m3;
typedef __hip_fp8x2_e5m2 __nv_fp8x2_e5m2;
typedef __hip_fp8x4_e4m3 __nv_fp8x4_e4m3;
typedef __hip_fp8x4_e5m2 __nv_fp8x4_e5m2;
typedef __hip_fp8_storage_t __nv_fp8_storage_t;
typedef __hip_fp8x2_storage_t __nv_fp8x2_storage_t;
typedef __hip_fp8x4_storage_t __nv_fp8x4_storage_t;
typedef __hip_saturation_t __nv_saturation_t;
typedef __hip_fp8_interpretation_t __nv_fp8_interpretation_t;
#define __NV_E4M3 __HIP_E4M3
#define __NV_E5M2 __HIP_E5M2
#define __NV_NOSAT __HIP_NOSAT
#define __NV_SATFINITE __HIP_SATFINITE
#define __nv_cvt_float_to_fp8 __hip_cvt_float_to_fp8
#define __nv_cvt_double_to_fp8 __hip_cvt_double_to_fp8
#define __nv_cvt_float2_to_fp8x2 __hip_cvt_float2_to_fp8x2
#define __nv_cvt_halfraw_to_fp8 __hip_cvt_halfraw_to_fp8
#define __nv_cvt_fp8_to_halfraw __hip_cvt_fp8_to_halfraw
#undef RATCHET_EIGHT
#endif
