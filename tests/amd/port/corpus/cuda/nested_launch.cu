__global__ void child(float* x) { x[threadIdx.x] += 1.0f; }

__global__ void parent(float* x) {
  if (threadIdx.x == 0) child<<<1, 64>>>(x);  // port: nested-launch
}

void host(float* x) { parent<<<1, 64>>>(x); }
