__global__ void blend(const unsigned* a, const unsigned* b, unsigned* c) {
  c[threadIdx.x] = __vaddus4(a[threadIdx.x], b[threadIdx.x]);  // port: device-function
  c[threadIdx.x] ^= __vabsdiffu4(a[threadIdx.x], b[threadIdx.x]);  // port: device-function
}
