__device__ unsigned lane_id() {
  unsigned lane;
  asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));  // port: inline-ptx
  return lane;
}

__global__ void lanes(unsigned* y) { y[threadIdx.x] = lane_id(); }
