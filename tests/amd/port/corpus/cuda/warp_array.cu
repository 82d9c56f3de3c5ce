__global__ void transpose_waves(const float* x, float* y) {
  __shared__ float tile[8][32];  // port: warp-array
  int lane = threadIdx.x % warpSize;
  int wave = threadIdx.x / warpSize;
  tile[wave][lane] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[wave][warpSize - 1 - lane];
}
