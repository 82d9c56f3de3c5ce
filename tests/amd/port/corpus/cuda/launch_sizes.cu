template <typename T> T root_of(T v) { return T(1) / sqrt(v); }
template <> float root_of(float v) { return rsqrtf(v); }  // port: host-function

__global__ void scale(float* x, float by, int n) {
  const int i = blockIdx.x * 256 + threadIdx.y * 32 + threadIdx.x;
  if (i < n) x[i] *= by * rsqrtf(2.f);
}

void scaled(float* x, float by, int n) {
  scale<<<(n + 255) / 256, {32, 8, 1}, 0, 0>>>(x, root_of(by), n);  // port: launch-sizes
}
