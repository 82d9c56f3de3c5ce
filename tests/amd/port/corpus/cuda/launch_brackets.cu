__global__ void fill(float* x) { x[threadIdx.x] = 1; }

void run(float* x, int n) {
  fill << <1, 64 >> > (x);  // port: launch-brackets
  int shifted = n << 1;
  bool less = shifted << 2 < n >> 1;
}
