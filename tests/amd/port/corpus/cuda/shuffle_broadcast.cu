__global__ void scale_by_first(float* x, const float* scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float s = 0.0f;
  if ((threadIdx.x & 31) == 0) s = scale[i / 32];  // port: lane-of-32
  s = __shfl_sync(0xFFFFFFFFu, s, 0);  // port: shuffle-width, mask-width
  if (i < n) x[i] *= s;
}
