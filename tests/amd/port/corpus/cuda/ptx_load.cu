__device__ __forceinline__ float4 load_once(const float4* p) {
  float4 v;
  // port: inline-ptx
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}

__global__ void stream(const float4* x, float4* y) { y[threadIdx.x] = load_once(x + threadIdx.x); }
