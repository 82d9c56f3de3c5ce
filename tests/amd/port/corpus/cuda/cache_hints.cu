__global__ void copy(const float* x, float* y, const int* index) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = __ldcs(x + __ldg(index + i));  // port: device-function
  __stcs(y + i, v);  // port: device-function
  __stcg(&y[i], __ldcg(&x[i]));  // port: device-function, device-function
}
