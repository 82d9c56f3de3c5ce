// Clean: an elementwise kernel with a grid-stride loop.
template <typename T>
__global__ void gelu(const T* __restrict__ x, T* __restrict__ y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float v = x[i];
    y[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
  }
}

void launch(const float* x, float* y, int n) { gelu<float><<<256, 256>>>(x, y, n); }
