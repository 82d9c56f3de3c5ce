// rocThrust has the same headers and names.
#include <thrust/device_vector.h>
#include <thrust/sort.h>

void sort(thrust::device_vector<int>& keys) { thrust::sort(keys.begin(), keys.end()); }
