#include <iostream>

#include "helper_math.h"

using std::cerr;
using std::endl;

struct Pair {
  cudaEvent_t cudaBegin, *cudaEnd;  // port: api-name
};

int device_count(const char* cuName, int cudaSizes[2]) {
  cudaError_t cudaStatus = cudaSuccess;
  dim3 cudaGridSize(1, 2);
  CUdevice cuDevice;
  for (int cudaIndex = 0; cudaIndex < 2; ++cudaIndex) cudaSizes[cudaIndex] = cudaGridSize.x;
  if (cudaStatus != cudaSuccess) cerr << cuName << endl;
  return cudaStatus == cudaSuccess && cuName ? (int)cuDevice : 0;
}

__global__ void twice(float* x) { x[threadIdx.x] = own_twice(x[threadIdx.x]); }
