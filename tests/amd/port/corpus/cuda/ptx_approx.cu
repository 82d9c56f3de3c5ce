__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // port: inline-ptx
  return y;
}

__device__ float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // port: inline-ptx
  return y;
}

__global__ void sigmoid(float* x) {
  x[threadIdx.x] = rcp_fast(1.0f + exp2_fast(-1.4426950408889634f * x[threadIdx.x]));
}
