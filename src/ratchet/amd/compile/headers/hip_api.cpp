// The rest of HIP's host interface, where HIP's own headers are: copies, symbols, properties, errors. Streams run in
// order and events are over at once, since a launch is over when it returns; no time passes between two events.
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern "C" {
int ratchet_hip_copy(void* to, const void* from, uint64_t bytes, int kind);
void* ratchet_hip_symbol(const void* host, uint64_t* bytes);
void* ratchet_hip_allocate(uint64_t bytes, int open);
int ratchet_hip_fill(void* place, int value, uint64_t bytes);
int ratchet_hip_fact(const char* name);
const char* ratchet_hip_target(void);
const char* ratchet_hip_device(void);
void ratchet_hip_complain(const char* text);
int ratchet_hip_launch(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared);
const char* ratchet_hip_name(const void* kernel);
}
static thread_local hipError_t last = hipSuccess;
static thread_local hipError_t fault = hipSuccess;  // a kernel's, which every later call tells
static hipError_t noted(int code) { return code ? last = (hipError_t)code : hipSuccess; }

extern "C" {
int ratchet_hip_note(int code) {
  if (code == hipErrorLaunchFailure) fault = hipErrorLaunchFailure;
  return noted(code);
}
hipError_t hipDeviceSynchronize(void) { return noted(fault); }
hipError_t hipMemcpy(void* to, const void* from, size_t n, hipMemcpyKind kind) {
  return noted(ratchet_hip_copy(to, from, n, kind));
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t n, hipMemcpyKind kind, hipStream_t) {
  return noted(ratchet_hip_copy(to, from, n, kind));
}
hipError_t ratchet_to_device(hipDeviceptr_t, const void*, size_t) __asm__("hipMemcpyHtoD");  // not const before HIP 7
hipError_t ratchet_to_device(hipDeviceptr_t to, const void* from, size_t n) {
  return noted(ratchet_hip_copy(to, from, n, hipMemcpyHostToDevice));
}
hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t n) {
  return noted(ratchet_hip_copy(to, from, n, hipMemcpyDeviceToHost));
}
hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t n) {
  return noted(ratchet_hip_copy(to, from, n, hipMemcpyDeviceToDevice));
}
hipError_t hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height,
                       hipMemcpyKind kind) {
  int code = 0;
  for (size_t row = 0; row < height && !code; ++row)
    code = ratchet_hip_copy((char*)to + row * to_pitch, (const char*)from + row * pitch, width, kind);
  return noted(code);
}
hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height,
                            hipMemcpyKind kind, hipStream_t) {
  return hipMemcpy2D(to, to_pitch, from, pitch, width, height, kind);
}
hipError_t hipGetSymbolAddress(void** place, const void* symbol) {
  uint64_t bytes = 0;
  *place = ratchet_hip_symbol(symbol, &bytes);
  return noted(*place ? 0 : hipErrorInvalidSymbol);
}
hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol) {
  uint64_t found = 0;
  void* place = ratchet_hip_symbol(symbol, &found);
  *bytes = found;
  return noted(place ? 0 : hipErrorInvalidSymbol);
}
hipError_t hipMemcpyToSymbol(const void* symbol, const void* from, size_t n, size_t offset, hipMemcpyKind kind) {
  void* place = nullptr;
  if (hipError_t code = hipGetSymbolAddress(&place, symbol)) return code;
  return noted(ratchet_hip_copy((char*)place + offset, from, n, kind));
}
hipError_t hipMemcpyFromSymbol(void* to, const void* symbol, size_t n, size_t offset, hipMemcpyKind kind) {
  void* place = nullptr;
  if (hipError_t code = hipGetSymbolAddress(&place, symbol)) return code;
  return noted(ratchet_hip_copy(to, (char*)place + offset, n, kind));
}
hipError_t hipMemcpyToSymbolAsync(const void* symbol, const void* from, size_t n, size_t offset, hipMemcpyKind kind,
                                  hipStream_t) {
  return hipMemcpyToSymbol(symbol, from, n, offset, kind);
}
hipError_t hipMemcpyFromSymbolAsync(void* to, const void* symbol, size_t n, size_t offset, hipMemcpyKind kind,
                                    hipStream_t) {
  return hipMemcpyFromSymbol(to, symbol, n, offset, kind);
}

static hipError_t allocated(void** place, size_t bytes, int open) {
  *place = ratchet_hip_allocate(bytes, open);
  return noted(*place ? 0 : hipErrorOutOfMemory);
}
hipError_t hipMallocAsync(void** place, size_t bytes, hipStream_t) { return allocated(place, bytes, 0); }
hipError_t hipFreeAsync(void* place, hipStream_t) { return hipFree(place); }
hipError_t hipMallocManaged(void** place, size_t bytes, unsigned) { return allocated(place, bytes, 1); }
hipError_t hipHostMalloc(void** place, size_t bytes, unsigned) { return allocated(place, bytes, 1); }
hipError_t hipHostAlloc(void** place, size_t bytes, unsigned) { return allocated(place, bytes, 1); }
hipError_t hipMallocHost(void** place, size_t bytes) { return allocated(place, bytes, 1); }
hipError_t hipFreeHost(void* place) { return hipFree(place); }
hipError_t hipMemPrefetchAsync(const void*, size_t, int, hipStream_t) { return hipSuccess; }
hipError_t hipMemAdvise(const void*, size_t, hipMemoryAdvise, int) { return hipSuccess; }
hipError_t hipInit(unsigned) { return hipSuccess; }
hipError_t hipProfilerStart(void) { return hipSuccess; }
hipError_t hipProfilerStop(void) { return hipSuccess; }
hipError_t hipDeviceEnablePeerAccess(int, unsigned) { return hipErrorInvalidDevice; }
hipError_t hipDeviceDisablePeerAccess(int) { return hipErrorInvalidDevice; }
hipError_t hipDeviceSetSharedMemConfig(hipSharedMemConfig) { return hipSuccess; }
hipError_t hipDeviceSetLimit(hipLimit_t, size_t) { return hipSuccess; }
hipError_t hipDeviceGetLimit(size_t* value, hipLimit_t) { return *value = 0, hipSuccess; }
hipError_t hipDeviceGetStreamPriorityRange(int* least, int* most) { return *least = *most = 0, hipSuccess; }
hipError_t hipLaunchHostFunc(hipStream_t, hipHostFn_t call, void* given) { return call(given), hipSuccess; }
hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t call, void* given, unsigned) {
  return call(stream, hipSuccess, given), hipSuccess;
}
hipError_t hipFuncGetAttributes(hipFuncAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  return found->maxThreadsPerBlock = 1024, found->numRegs = 64, hipSuccess;
}
hipError_t hipMemsetD32(hipDeviceptr_t place, int value, size_t count) {
  int code = 0;
  for (size_t at = 0; at < count && !code; ++at) code = ratchet_hip_copy((int*)place + at, &value, 4, 1);
  return noted(code);
}
hipError_t hipHostFree(void* place) { return hipFree(place); }
hipError_t hipHostGetDevicePointer(void** place, void* host, unsigned) { return *place = host, hipSuccess; }
hipError_t hipMallocPitch(void** place, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 255) / 256 * 256;
  return allocated(place, *pitch * height, 0);
}
hipError_t hipMemset2D(void* place, size_t pitch, int value, size_t width, size_t height) {
  int code = 0;
  for (size_t row = 0; row < height && !code; ++row) code = ratchet_hip_fill((char*)place + row * pitch, value, width);
  return noted(code);
}
hipError_t hipMemGetInfo(size_t* left, size_t* total) { return *left = *total = (size_t)4 << 30, hipSuccess; }

hipError_t hipGetDeviceCount(int* count) { return *count = 1, hipSuccess; }
hipError_t hipGetDevice(int* device) { return *device = 0, hipSuccess; }
hipError_t hipSetDevice(int device) {
  // Tensors here answer -1 when they are asked for their device's number.
  if (device > 0) ratchet_hip_complain("its host code asks for another GPU than 0: one is emulated");
  return noted(device > 0 ? hipErrorInvalidDevice : 0);
}
hipError_t hipDeviceReset(void) { return hipSuccess; }
hipError_t hipSetDeviceFlags(unsigned) { return hipSuccess; }
hipError_t hipDriverGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipRuntimeGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipDeviceCanAccessPeer(int* can, int, int) { return *can = 0, hipSuccess; }
hipError_t hipGetDeviceProperties(hipDeviceProp_t* found, int) {  // R0600 from HIP 6 on
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "%s", ratchet_hip_device());
  snprintf(found->gcnArchName, sizeof found->gcnArchName, "%s", ratchet_hip_target());
  found->warpSize = ratchet_hip_fact("lanes");
  found->multiProcessorCount = ratchet_hip_fact("compute_units");
  found->sharedMemPerBlock = found->maxSharedMemoryPerMultiProcessor = ratchet_hip_fact("lds");
#if HIP_VERSION_MAJOR >= 6
  found->sharedMemPerBlockOptin = found->sharedMemPerBlock, found->regsPerMultiprocessor = 65536;
#endif
  found->totalGlobalMem = (size_t)ratchet_hip_fact("memory_mib") << 20;
  found->regsPerBlock = 65536;
  found->maxThreadsPerBlock = 1024, found->maxThreadsPerMultiProcessor = 2048;
  for (int axis = 0; axis < 3; ++axis) found->maxThreadsDim[axis] = 1024, found->maxGridSize[axis] = 65536;
  found->maxGridSize[0] = 2147483647;
  found->major = ratchet_hip_fact("major"), found->minor = ratchet_hip_fact("minor");
  found->clockRate = 2100000, found->totalConstMem = 65536, found->l2CacheSize = 4 << 20;
  return hipSuccess;
}
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t which, int) {
  hipDeviceProp_t all;
  (void)hipGetDeviceProperties(&all, 0);
  switch (which) {
    case hipDeviceAttributeWarpSize: *value = all.warpSize; break;
    case hipDeviceAttributeMultiprocessorCount: *value = all.multiProcessorCount; break;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeSharedMemPerBlockOptin:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: *value = (int)all.sharedMemPerBlock; break;
    case hipDeviceAttributeMaxThreadsPerBlock: *value = all.maxThreadsPerBlock; break;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: *value = all.maxThreadsPerMultiProcessor; break;
    case hipDeviceAttributeMaxGridDimX: *value = all.maxGridSize[0]; break;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ: *value = all.maxGridSize[1]; break;
    case hipDeviceAttributeComputeCapabilityMajor: *value = all.major; break;
    case hipDeviceAttributeComputeCapabilityMinor: *value = all.minor; break;
    case hipDeviceAttributeClockRate: *value = all.clockRate; break;
    case hipDeviceAttributeL2CacheSize: *value = all.l2CacheSize; break;
    default: *value = 0;
  }
  return hipSuccess;
}

static int token;
static hipError_t made(void** handle) { return *handle = &token, hipSuccess; }
hipError_t hipStreamCreate(hipStream_t* stream) { return made((void**)stream); }
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) { return made((void**)stream); }
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned, int) { return made((void**)stream); }
hipError_t hipStreamDestroy(hipStream_t) { return hipSuccess; }
hipError_t hipStreamSynchronize(hipStream_t) { return noted(fault); }
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
int hipGetStreamDeviceId(hipStream_t) { return 0; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
hipError_t hipEventCreate(hipEvent_t* event) { return made((void**)event); }
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) { return made((void**)event); }
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return noted(fault); }
hipError_t hipEventQuery(hipEvent_t) { return hipSuccess; }
hipError_t hipEventDestroy(hipEvent_t) { return hipSuccess; }
hipError_t hipEventElapsedTime(float* ms, hipEvent_t, hipEvent_t) { return *ms = 0.001f, hipSuccess; }

hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int) { return hipSuccess; }
hipError_t hipFuncSetCacheConfig(const void*, hipFuncCache_t) { return hipSuccess; }
hipError_t hipDeviceSetCacheConfig(hipFuncCache_t) { return hipSuccess; }
hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void*, size_t, int most) {
  *grid = ratchet_hip_fact("compute_units"), *block = most > 0 && most < 256 ? most : 256;
  return hipSuccess;
}
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared) {
  const int lds = ratchet_hip_fact("lds"), by_threads = 2048 / (threads > 0 ? threads : 1);
  const int by_lds = shared ? (int)(lds / shared) : by_threads;
  return *blocks = by_threads < by_lds ? by_threads : by_lds, hipSuccess;
}
hipError_t hipExtLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, hipStream_t,
                              hipEvent_t, hipEvent_t, int) {
  return noted(ratchet_hip_launch(kernel, grid, block, arguments, shared));
}
hipError_t hipPeekAtLastError(void) { return last; }
hipError_t hipGetLastError(void) {
  const hipError_t found = last;
  return last = hipSuccess, found;
}
hipError_t hipExtGetLastError(void) { return hipGetLastError(); }
const char* hipGetErrorName(hipError_t code) {
  switch (code) {
    case hipSuccess: return "hipSuccess";
    case hipErrorInvalidValue: return "hipErrorInvalidValue";
    case hipErrorOutOfMemory: return "hipErrorOutOfMemory";
    case hipErrorInvalidDevice: return "hipErrorInvalidDevice";
    case hipErrorInvalidSymbol: return "hipErrorInvalidSymbol";
    case hipErrorLaunchFailure: return "hipErrorLaunchFailure";
    case hipErrorInvalidConfiguration: return "hipErrorInvalidConfiguration";
    default: return "hipErrorUnknown";
  }
}
const char* hipGetErrorString(hipError_t code) {
  switch (code) {
    case hipSuccess: return "no error";
    case hipErrorInvalidValue: return "invalid argument";
    case hipErrorOutOfMemory: return "out of memory";
    case hipErrorInvalidDevice: return "invalid device ordinal";
    case hipErrorInvalidSymbol: return "invalid device symbol";
    case hipErrorLaunchFailure: return "unspecified launch failure";
    case hipErrorInvalidConfiguration: return "invalid configuration argument";
    default: return "unknown error";
  }
}
}
