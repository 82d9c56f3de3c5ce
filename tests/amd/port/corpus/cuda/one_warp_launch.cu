__global__ void copy32(const float* x, float* y) { y[blockIdx.x * 32 + threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x]; }

void launch(const float* x, float* y, int n) {
  copy32<<<n / 32, 32>>>(x, y);  // port: half-wave-block
  copy32<<<n / 32, dim3(8, 4)>>>(x, y);  // port: half-wave-block
  copy32<<<n / 32, dim3(32, 4)>>>(x, y);
}
