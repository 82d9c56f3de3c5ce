// Half precision for a machine without ROCm.
#ifndef RATCHET_HIP_HIP_FP16_H
#define RATCHET_HIP_HIP_FP16_H
#include <hip/hip_runtime.h>
#include <type_traits>
#include "ratchet_sixteen.h"

RATCHET_NUMBER(__half, __half2, _Float16)
typedef __half half;
typedef __half2 half2;
typedef _Float16 __half_raw;
RATCHET_BOTH float __half2float(__half a) { return (float)a.data; }
RATCHET_SIXTEEN(__half, __half2, half)
RATCHET_BOTH __half __float2half_rz(float a) {
  const _Float16 near = (_Float16)a;
  if (!(__builtin_fabsf((float)near) > __builtin_fabsf(a))) return __half(near);
  return __ushort_as_half(__half_as_ushort(__half(near)) - 1);
}
RATCHET_BOTH int __half2int_rn(__half a) { return (int)__builtin_rintf((float)a); }
RATCHET_BOTH int __half2int_rz(__half a) { return (int)(float)a; }
RATCHET_BOTH __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
RATCHET_BOTH __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
RATCHET_BOTH __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
RATCHET_BOTH __half2 __halves2half2(__half a, __half b) { return {a, b}; }
RATCHET_BOTH __half2 make_half2(__half a, __half b) { return {a, b}; }
RATCHET_BOTH __half2 __half2half2(__half a) { return {a, a}; }
RATCHET_BOTH float2 __half22float2(__half2 a) { return make_float2((float)a.x, (float)a.y); }
RATCHET_BOTH __half __low2half(__half2 a) { return a.x; }
RATCHET_BOTH __half __high2half(__half2 a) { return a.y; }
RATCHET_BOTH __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
RATCHET_BOTH __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
RATCHET_BOTH __half2 __lowhigh2highlow(__half2 a) { return {a.y, a.x}; }
RATCHET_BOTH float __low2float(__half2 a) { return (float)a.x; }
RATCHET_BOTH float __high2float(__half2 a) { return (float)a.y; }
#endif
