#pragma once
__device__ inline float own_twice(float cudaValue) { return cudaValue + cudaValue; }
