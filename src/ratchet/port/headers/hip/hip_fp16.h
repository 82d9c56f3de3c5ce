// Half precision for a machine without ROCm: enough to compile code for the GPU, not to ship it.
#pragma once
#include <hip/hip_runtime.h>

typedef _Float16 __half;
typedef _Float16 half;
struct __half2 { __half x, y; };
typedef __half2 half2;
#define PORT_HALF static inline __device__ __attribute__((always_inline))
PORT_HALF __half __float2half(float a) { return (__half)a; }
PORT_HALF __half __float2half_rn(float a) { return (__half)a; }
PORT_HALF float __half2float(__half a) { return (float)a; }
PORT_HALF __half __hadd(__half a, __half b) { return a + b; }
PORT_HALF __half __hsub(__half a, __half b) { return a - b; }
PORT_HALF __half __hmul(__half a, __half b) { return a * b; }
PORT_HALF __half __hfma(__half a, __half b, __half c) { return a * b + c; }
PORT_HALF bool __hgt(__half a, __half b) { return a > b; }
PORT_HALF bool __hlt(__half a, __half b) { return a < b; }
PORT_HALF __half2 __hadd2(__half2 a, __half2 b) { return {a.x + b.x, a.y + b.y}; }
PORT_HALF __half2 __hmul2(__half2 a, __half2 b) { return {a.x * b.x, a.y * b.y}; }
PORT_HALF __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {a.x * b.x + c.x, a.y * b.y + c.y};
}
PORT_HALF __half2 __floats2half2_rn(float a, float b) { return {(__half)a, (__half)b}; }
PORT_HALF __half2 __float2half2_rn(float a) { return {(__half)a, (__half)a}; }
PORT_HALF __half2 __halves2half2(__half a, __half b) { return {a, b}; }
PORT_HALF float2 __half22float2(__half2 a) { return make_float2((float)a.x, (float)a.y); }
PORT_HALF __half __low2half(__half2 a) { return a.x; }
PORT_HALF __half __high2half(__half2 a) { return a.y; }
PORT_HALF float __low2float(__half2 a) { return (float)a.x; }
PORT_HALF float __high2float(__half2 a) { return (float)a.y; }
#undef PORT_HALF
