__device__ void copy16(void* shared, const void* global) {
  unsigned s = __cvta_generic_to_shared(shared);  // port: device-function
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s), "l"(global));  // port: async-copy-ptx
}

__device__ void wait_all() {
  asm volatile("cp.async.wait_all;");  // port: async-copy-ptx
}
