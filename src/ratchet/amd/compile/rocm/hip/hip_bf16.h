// bfloat16 for a machine without ROCm.
#ifndef RATCHET_HIP_HIP_BF16_H
#define RATCHET_HIP_HIP_BF16_H
#include <hip/hip_runtime.h>
#include <type_traits>
#include "ratchet_sixteen.h"

RATCHET_NUMBER(__hip_bfloat16, __hip_bfloat162, __bf16)
typedef __hip_bfloat16 hip_bfloat16;
typedef __hip_bfloat16 nv_bfloat16;
typedef __hip_bfloat162 nv_bfloat162;
typedef __hip_bfloat16 __nv_bfloat16;
typedef __hip_bfloat162 __nv_bfloat162;
RATCHET_BOTH float __bfloat162float(__hip_bfloat16 a) { return (float)a.data; }
RATCHET_SIXTEEN(__hip_bfloat16, __hip_bfloat162, bfloat16)
RATCHET_BOTH __hip_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__hip_bfloat16(a), __hip_bfloat16(b)};
}
RATCHET_BOTH __hip_bfloat162 __float22bfloat162_rn(float2 a) {
  return {__hip_bfloat16(a.x), __hip_bfloat16(a.y)};
}
RATCHET_BOTH __hip_bfloat162 __float2bfloat162_rn(float a) {
  return {__hip_bfloat16(a), __hip_bfloat16(a)};
}
RATCHET_BOTH __hip_bfloat162 __halves2bfloat162(__hip_bfloat16 a, __hip_bfloat16 b) {
  return {a, b};
}
RATCHET_BOTH __hip_bfloat162 make_bfloat162(__hip_bfloat16 a, __hip_bfloat16 b) { return {a, b}; }
RATCHET_BOTH __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 a) { return {a, a}; }
RATCHET_BOTH float2 __bfloat1622float2(__hip_bfloat162 a) {
  return make_float2((float)a.x, (float)a.y);
}
RATCHET_BOTH __hip_bfloat16 __low2bfloat16(__hip_bfloat162 a) { return a.x; }
RATCHET_BOTH __hip_bfloat16 __high2bfloat16(__hip_bfloat162 a) { return a.y; }
RATCHET_BOTH __hip_bfloat162 __low2bfloat162(__hip_bfloat162 a) { return {a.x, a.x}; }
RATCHET_BOTH __hip_bfloat162 __high2bfloat162(__hip_bfloat162 a) { return {a.y, a.y}; }
RATCHET_BOTH float __low2float(__hip_bfloat162 a) { return (float)a.x; }
RATCHET_BOTH float __high2float(__hip_bfloat162 a) { return (float)a.y; }
#endif
