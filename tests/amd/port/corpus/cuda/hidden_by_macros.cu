// Macros stand for the syntax itself.
#define KERNEL(name, T) __global__ void name(T* x, int n)
#define BEGIN {
#define END }
#define REDUCE(v) for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);  // port: shuffle-width, mask-width
#define BODY(T) BEGIN T v = x[threadIdx.x]; REDUCE(v) if (threadIdx.x == 0) x[0] = v; END

KERNEL(sum_of_floats, float) BODY(float)
KERNEL(sum_of_doubles, double) BODY(double)
