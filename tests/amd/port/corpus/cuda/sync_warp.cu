__global__ void exchange(float* x) {
  __shared__ float row[256];
  row[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  float v = row[threadIdx.x ^ 1];
  __syncwarp(0xffffffff);  // port: mask-width
  x[threadIdx.x] = v;
}
