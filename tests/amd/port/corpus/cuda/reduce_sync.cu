// Reductions of sm_80 in one instruction.
__global__ void sum_of_bits(const unsigned* x, unsigned* y) {
  unsigned s = __reduce_add_sync(0xffffffff, __popc(x[threadIdx.x]));  // port: mask-width
  unsigned m = __reduce_max_sync(0xffffffff, x[threadIdx.x]);  // port: mask-width
  if (threadIdx.x == 0) *y = s + m;
}
