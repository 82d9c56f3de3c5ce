__global__ void lock(int* mutex, int* value) {
  if (threadIdx.x == 0) {
    while (atomicCAS(mutex, 0, 1) != 0) __nanosleep(64);  // port: device-function
    *value += 1;
    __threadfence();
    atomicExch(mutex, 0);
  }
}
