// What a HIP kernel needs to be compiled where ROCm is not installed: index variables, barriers,
// atomics, shuffles, the functions of one hardware instruction, and on the host launches and memory.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads, ...) \
  __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define RATCHET_DEVICE static inline __attribute__((device)) __attribute__((always_inline))

#define RATCHET_INDEX(name, x_of, y_of, z_of)                                    \
  struct ratchet_##name {                                                        \
    struct along_x { __device__ operator unsigned() const { return x_of; } } x;  \
    struct along_y { __device__ operator unsigned() const { return y_of; } } y;  \
    struct along_z { __device__ operator unsigned() const { return z_of; } } z;  \
  };                                                                             \
  static __device__ const ratchet_##name name = {};

RATCHET_INDEX(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
              __builtin_amdgcn_workitem_id_z())
RATCHET_INDEX(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
              __builtin_amdgcn_workgroup_id_z())
RATCHET_INDEX(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
              __builtin_amdgcn_workgroup_size_z())
// hidden_block_count_x, _y and _z (LLVM's AMDGPUUsage, code object V5).
#define RATCHET_HIDDEN(at) (((const unsigned __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr())[at])
RATCHET_INDEX(gridDim, RATCHET_HIDDEN(0), RATCHET_HIDDEN(1), RATCHET_HIDDEN(2))
#undef RATCHET_HIDDEN
#undef RATCHET_INDEX

#define warpSize __builtin_amdgcn_wavefrontsize()

typedef _Float16 __half;
typedef _Float16 half;
typedef __bf16 __hip_bfloat16;
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef int int2 __attribute__((ext_vector_type(2)));
typedef int int4 __attribute__((ext_vector_type(4)));
typedef unsigned uint2 __attribute__((ext_vector_type(2)));
typedef unsigned uint4 __attribute__((ext_vector_type(4)));
typedef struct ihipStream_t* hipStream_t;
typedef int hipError_t;
enum { hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorOutOfMemory = 2 };

struct dim3 {
  unsigned x, y, z;
  __host__ __device__ constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
      : x(x), y(y), z(z) {}
};

extern "C" {
hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                           size_t shared, hipStream_t stream);
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0,
                                      hipStream_t stream = 0);
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, hipStream_t* stream);
hipError_t hipMalloc(void** place, size_t bytes);
hipError_t hipFree(void* place);
hipError_t hipMemsetAsync(void* place, int value, size_t bytes, hipStream_t stream = 0);
hipError_t hipMemset(void* place, int value, size_t bytes);
hipError_t hipGetLastError(void);
hipError_t hipDeviceSynchronize(void);
}
#define hipLaunchKernelGGL(kernel, grid, block, shared, stream, ...) \
  kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)

RATCHET_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
RATCHET_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

RATCHET_DEVICE int ratchet_lane() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
#define RATCHET_WAVE ((int)__builtin_amdgcn_wavefrontsize())

// A value of any size from another lane, word by word.
template <typename T> RATCHET_DEVICE T ratchet_from_lane(T value, int lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  int from[words] = {};
  __builtin_memcpy(from, &value, sizeof(T));
  for (int i = 0; i < words; ++i) from[i] = __builtin_amdgcn_ds_bpermute(lane << 2, from[i]);
  T found;
  __builtin_memcpy(&found, from, sizeof(T));
  return found;
}
// Groups of `width` lanes, a power of two; a lane without a partner in its group keeps its own value.
template <typename T> RATCHET_DEVICE T __shfl(T value, int lane, int width = RATCHET_WAVE) {
  return ratchet_from_lane(value, (lane & (width - 1)) | (ratchet_lane() & ~(width - 1)));
}
template <typename T> RATCHET_DEVICE T __shfl_xor(T value, int mask, int width = RATCHET_WAVE) {
  const int own = ratchet_lane(), other = own ^ mask;
  return ratchet_from_lane(value, other >= ((own + width) & ~(width - 1)) ? own : other);
}
template <typename T>
RATCHET_DEVICE T __shfl_down(T value, unsigned by, int width = RATCHET_WAVE) {
  const int own = ratchet_lane();
  return ratchet_from_lane(value, (own & (width - 1)) + (int)by >= width ? own : own + (int)by);
}
template <typename T> RATCHET_DEVICE T __shfl_up(T value, unsigned by, int width = RATCHET_WAVE) {
  const int own = ratchet_lane();
  return ratchet_from_lane(value, (own & (width - 1)) < (int)by ? own : own - (int)by);
}
template <typename T> RATCHET_DEVICE T atomicAdd(T* place, T value) {
  return __hip_atomic_fetch_add(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T> RATCHET_DEVICE T atomicMax(T* place, T value) {
  return __hip_atomic_fetch_max(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

RATCHET_DEVICE float expf(float x) { return __builtin_expf(x); }
RATCHET_DEVICE float exp2f(float x) { return __builtin_exp2f(x); }
RATCHET_DEVICE float logf(float x) { return __builtin_logf(x); }
RATCHET_DEVICE float log2f(float x) { return __builtin_log2f(x); }
RATCHET_DEVICE float sqrtf(float x) { return __builtin_sqrtf(x); }
RATCHET_DEVICE float rsqrtf(float x) { return __builtin_amdgcn_rsqf(x); }
RATCHET_DEVICE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
RATCHET_DEVICE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
RATCHET_DEVICE float fminf(float x, float y) { return __builtin_fminf(x, y); }
RATCHET_DEVICE float fabsf(float x) { return __builtin_fabsf(x); }
RATCHET_DEVICE float floorf(float x) { return __builtin_floorf(x); }
RATCHET_DEVICE float ceilf(float x) { return __builtin_ceilf(x); }
RATCHET_DEVICE float tanhf(float x) {
  const float size = __builtin_fabsf(x), square = x * x;
  if (size < 0.625f) {  // Cephes' polynomial: near 0 the formula below cancels
    float p = -5.70498872745e-3f;
    p = __builtin_fmaf(p, square, 2.06390887954e-2f);
    p = __builtin_fmaf(p, square, -5.37397155531e-2f);
    p = __builtin_fmaf(p, square, 1.33314422036e-1f);
    p = __builtin_fmaf(p, square, -3.33332819422e-1f);
    return __builtin_fmaf(p * square, x, x);
  }
  const float large = 1.0f - 2.0f / (__builtin_expf(2.0f * size) + 1.0f);
  return __builtin_copysignf(large, x);
}
RATCHET_DEVICE float __expf(float x) { return __builtin_expf(x); }
RATCHET_DEVICE __half __float2half(float x) { return (_Float16)x; }
RATCHET_DEVICE float __half2float(__half x) { return (float)x; }
RATCHET_DEVICE __hip_bfloat16 __float2bfloat16(float x) { return (__bf16)x; }
RATCHET_DEVICE float __bfloat162float(__hip_bfloat16 x) { return (float)x; }
#undef RATCHET_DEVICE
