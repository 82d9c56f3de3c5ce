constexpr int kTile = 128;

__global__ void tiles(const float* x, float* y) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[kTile - threadIdx.x];
}

void launch(const float* x, float* y) {
  const int bytes = 3 * kTile * kTile * sizeof(float);
  // port: shared-memory-limit, api-name, kernel-pointer
  cudaFuncSetAttribute(tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  tiles<<<1, 256, bytes>>>(x, y);  // port: shared-memory-limit
  tiles<<<1, 256, 2 * kTile * sizeof(float)>>>(x, y);
}
