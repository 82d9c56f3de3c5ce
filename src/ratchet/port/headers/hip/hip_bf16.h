// bfloat16 for a machine without ROCm: enough to compile code for the GPU, not to ship it.
#pragma once
#include <hip/hip_runtime.h>

typedef __bf16 __hip_bfloat16;
typedef __bf16 hip_bfloat16;
struct __hip_bfloat162 { __hip_bfloat16 x, y; };
#define PORT_BF16 static inline __device__ __attribute__((always_inline))
PORT_BF16 __hip_bfloat16 __float2bfloat16(float a) { return (__bf16)a; }
PORT_BF16 __hip_bfloat16 __float2bfloat16_rn(float a) { return (__bf16)a; }
PORT_BF16 float __bfloat162float(__hip_bfloat16 a) { return (float)a; }
PORT_BF16 __hip_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {(__bf16)a, (__bf16)b};
}
PORT_BF16 __hip_bfloat162 __hfma2(__hip_bfloat162 a, __hip_bfloat162 b, __hip_bfloat162 c) {
  return {(__bf16)((float)a.x * (float)b.x + (float)c.x), (__bf16)((float)a.y * (float)b.y + (float)c.y)};
}
#undef PORT_BF16
