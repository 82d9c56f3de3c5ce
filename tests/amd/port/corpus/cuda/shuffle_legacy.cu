// Shuffles of CUDA 8, which HIP still has: they span the wave.
__global__ void rotate(float* x) {
  float v = x[threadIdx.x];
  x[threadIdx.x] = __shfl(v, (threadIdx.x + 1) & 31);  // port: shuffle-width, lane-of-32
}
