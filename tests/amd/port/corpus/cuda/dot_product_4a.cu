__global__ void dot(const int* a, const int* b, int* c) {
  int acc = 0;
  for (int i = threadIdx.x; i < 256; i += blockDim.x) acc = __dp4a(a[i], b[i], acc);  // port: device-function
  atomicAdd(c, acc);
}
