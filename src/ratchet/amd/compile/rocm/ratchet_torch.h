// torch's streams, guards and checks of a GPU that is not here. Its tensors lie in main memory, and torch was built
// without GPUs, so `is_cuda()` asks what such a tensor answers.
#ifndef RATCHET_RATCHET_TORCH_H
#define RATCHET_RATCHET_TORCH_H
#include <c10/core/DeviceGuard.h>
#include <hip/hip_runtime.h>
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/NumericUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <ATen/ceil_div.h>
#include <ATen/native/DispatchStub.h>
#include <optional>

namespace c10 {
namespace cuda {
class CUDAStream {
 public:
  CUDAStream() = default;
  operator hipStream_t() const { return nullptr; }
  operator c10::Stream() const { return unwrap(); }
  hipStream_t stream() const { return nullptr; }
  c10::DeviceIndex device_index() const { return 0; }
  c10::Device device() const { return c10::Device(c10::kCPU); }
  c10::Stream unwrap() const { return c10::Stream(c10::Stream::DEFAULT, device()); }
  c10::StreamId id() const { return 0; }
  void synchronize() const {}
  bool query() const { return true; }
  bool operator==(const CUDAStream&) const { return true; }
  bool operator!=(const CUDAStream&) const { return false; }
};
typedef CUDAStream HIPStream;
typedef CUDAStream HIPStreamMasqueradingAsCUDA;
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
inline CUDAStream getCurrentHIPStream(int = -1) { return {}; }
inline CUDAStream getDefaultHIPStream(int = -1) { return {}; }
inline CUDAStream getCurrentHIPStreamMasqueradingAsCUDA(int = -1) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
inline void setCurrentHIPStream(CUDAStream) {}
inline c10::DeviceIndex current_device() { return 0; }
inline c10::DeviceIndex device_count() { return 1; }
inline c10::DeviceIndex device_count_ensure_non_zero() { return 1; }
inline void set_device(c10::DeviceIndex device) { (void)hipSetDevice(device); }
inline hipError_t SetDevice(c10::DeviceIndex device, bool = false) { return hipSetDevice(device); }
inline hipError_t MaybeSetDevice(c10::DeviceIndex device) { return hipSetDevice(device); }
inline hipError_t GetDevice(c10::DeviceIndex* device) { return *device = 0, hipSuccess; }
inline c10::DeviceIndex ExchangeDevice(c10::DeviceIndex) { return 0; }
inline c10::DeviceIndex MaybeExchangeDevice(c10::DeviceIndex) { return 0; }
inline void device_synchronize() {}
inline void stream_synchronize(hipStream_t) {}
namespace CUDACachingAllocator {
inline void* raw_alloc(size_t bytes) {
  void* place = nullptr;
  (void)hipMalloc(&place, bytes);
  return place;
}
inline void raw_delete(void* place) { (void)hipFree(place); }
inline void emptyCache() {}
}  // namespace CUDACachingAllocator
namespace HIPCachingAllocator = CUDACachingAllocator;
struct CUDAGuard {
  CUDAGuard() = default;
  template <typename T> explicit CUDAGuard(const T&) {}
  void set_index(int) {}
  template <typename T> void set_device(const T&) {}
  template <typename T> void reset_device(const T&) {}
  c10::Device current_device() const { return c10::Device(c10::kCPU); }
  c10::Device original_device() const { return c10::Device(c10::kCPU); }
};
typedef CUDAGuard OptionalCUDAGuard, CUDAStreamGuard, OptionalCUDAStreamGuard, HIPGuard;
typedef CUDAGuard OptionalHIPGuard, HIPStreamGuard, HIPGuardMasqueradingAsCUDA;
typedef CUDAGuard OptionalHIPGuardMasqueradingAsCUDA, HIPStreamGuardMasqueradingAsCUDA;
}  // namespace cuda
namespace hip {
using namespace cuda;
}
}  // namespace c10
namespace at {
namespace cuda {
using namespace c10::cuda;
inline hipDeviceProp_t* getCurrentDeviceProperties() {
  static hipDeviceProp_t found;
  (void)hipGetDeviceProperties(&found, 0);
  return &found;
}
inline hipDeviceProp_t* getDeviceProperties(c10::DeviceIndex) { return getCurrentDeviceProperties(); }
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
inline bool is_available() { return true; }
template <typename T> inline __host__ __device__ T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <typename T> inline __host__ __device__ T ATenCeilDiv(T a, T b) { return (a + b - 1) / b; }
}  // namespace cuda
namespace hip {
using namespace cuda;
}
}  // namespace at
namespace torch {
namespace cuda {
using namespace at::cuda;
inline int64_t device_count() { return 1; }
inline bool is_available() { return true; }
inline void synchronize(int64_t = -1) {}
}  // namespace cuda
}  // namespace torch

#define C10_HIP_CHECK(called)                                                           \
  do {                                                                                  \
    const hipError_t ratchet_error = (called);                                          \
    TORCH_CHECK(ratchet_error == hipSuccess, "HIP error: ", hipGetErrorString(ratchet_error)); \
  } while (0)
#define C10_CUDA_CHECK(called) C10_HIP_CHECK(called)
#ifndef AT_CHECK  // torch before 1.5
#define AT_CHECK TORCH_CHECK
#endif
#define AT_CUDA_CHECK(called) C10_HIP_CHECK(called)
#define AT_HIP_CHECK(called) C10_HIP_CHECK(called)
#define TORCH_CUDA_CHECK(called) C10_HIP_CHECK(called)
#define C10_CUDA_CHECK_WARN(called) (void)(called)
#define C10_CUDA_IGNORE_ERROR(called) (void)(called)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_HIP_CHECK(hipGetLastError())
#define C10_HIP_KERNEL_LAUNCH_CHECK() C10_HIP_CHECK(hipGetLastError())
#ifdef RATCHET_LANES
#undef C10_WARP_SIZE
#undef C10_WARP_SIZE_LOWER_BOUND
#undef C10_WARP_SIZE_UPPER_BOUND
#define C10_WARP_SIZE RATCHET_LANES
#define C10_WARP_SIZE_LOWER_BOUND RATCHET_LANES
#define C10_WARP_SIZE_UPPER_BOUND RATCHET_LANES
#endif
#undef CUDA_KERNEL_ASSERT
#define CUDA_KERNEL_ASSERT(said) assert(said)
#ifndef CUDA_KERNEL_LOOP
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                          \
  for (index_type i = (index_type)((int64_t)blockIdx.x * blockDim.x + threadIdx.x); i < (n); \
       i += (index_type)(blockDim.x * gridDim.x))
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#define HIP_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP(i, n)
#endif
// Tensors all lie on the one GPU; torch's own functions would say on the CPU.
namespace at {
inline void ratchet_on_one_gpu(CheckedFrom, const TensorArg&, const TensorArg&) {}
inline void ratchet_on_one_gpu(CheckedFrom, ArrayRef<TensorArg>) {}
}  // namespace at
#define checkAllSameGPU ratchet_on_one_gpu
#define checkSameGPU ratchet_on_one_gpu
// Host code may read a copy in pinned memory. The tensor itself lies where only kernels reach.
#define cpu() to(c10::TensorOptions().pinned_memory(true), false, true)
#define is_cuda is_cpu
#define kCUDA kCPU
#define kHIP kCPU
#define CUDA CPU
#define USE_ROCM 1
#endif
