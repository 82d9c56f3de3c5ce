__global__ void uniform(const int* x, int* out) {
  int same;
  __match_all_sync(0xffffffffffffffffull, x[threadIdx.x], &same);  // port: match-mask
  out[threadIdx.x] = same;
}
