// Has a function of its own with the name of a missing one: nothing to find.
__device__ int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (signed char)(a >> (8 * i)) * (signed char)(b >> (8 * i));
  return c;
}

__global__ void dot(const int* a, const int* b, int* c) { c[threadIdx.x] = __dp4a(a[threadIdx.x], b[threadIdx.x], 0); }
