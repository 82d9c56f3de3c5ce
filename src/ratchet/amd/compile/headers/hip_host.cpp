// HIP's runtime as an emulated kernel's host code sees it: launches and memory go to the emulator.
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct Dim3 {
  unsigned x, y, z;
};
struct Told {
  const void* host;
  const char* name;
};
struct Asked {
  int (*launch)(const char* name, const unsigned* grid_and_block, void** arguments, uint64_t shared);
  void* (*allocate)(uint64_t bytes);
  int (*release)(void* place);
  int (*fill)(void* place, int value, uint64_t bytes);
  int (*copy)(void* to, const void* from, uint64_t bytes, int kind);
  void* (*symbol)(const char* name, uint64_t* bytes);
  void* (*allocate_open)(uint64_t bytes);
  int (*fact)(const char* name);
  const char *target, *device;
  int (*open)(int allowed);
  void (*exit)(int code);
  int (*product)(const void* asked);
};
struct Configuration {
  Dim3 grid, block;
  size_t shared;
  void* stream;
};

static const int MOST = 1024;
static Told kernels[MOST], variables[MOST];
static int known = 0, known_variables = 0;
static Asked asked;
static thread_local Configuration given;
static pthread_t home;
static const char* complaint = 0;

// Whether HIP is called from the thread of the call. Another would wait for Python's lock, which the call holds.
static bool at_home(void) {
  if (pthread_equal(pthread_self(), home)) return true;
  complaint = "its host code calls HIP from a thread of its own: call it from the thread of the call";
  return false;
}

extern "C" {
// What clang's code for the host refers to; the name depends on its version.
char __hip_fatbin[8], __hip_fatbin_[8];
void *__hip_gpubin_handle, *__hip_gpubin_handle_;
// What the C runtime's start files would define.
__attribute__((weak, visibility("hidden"))) void* __dso_handle = &__dso_handle;

__attribute__((visibility("default"))) void ratchet_hip_install(const Asked* functions) {
  asked = *functions;
}

__attribute__((visibility("default"))) void ratchet_hip_begin(void) { home = pthread_self(), complaint = 0; }
__attribute__((visibility("default"))) const char* ratchet_hip_complaint(void) { return complaint; }
void ratchet_hip_complain(const char* text) { complaint = text; }

void** __hipRegisterFatBinary(const void*) {
  static void* handle;
  return &handle;
}
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterVar(void**, void* host, char*, char* name, int, size_t, int, int) {
  if (known_variables < MOST) variables[known_variables++] = Told{host, name};
}
void __hipRegisterFunction(void**, const void* host, char*, const char* name, unsigned, void*, void*,
                           void*, void*, int*) {
  if (known < MOST) kernels[known++] = Told{host, name};
}

int __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  given = Configuration{grid, block, shared, stream};
  return 0;
}
int __hipPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void** stream) {
  *grid = given.grid, *block = given.block, *shared = given.shared, *stream = given.stream;
  return 0;
}
int ratchet_hip_launch(const void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared) {
  if (!at_home()) return 1;
  const unsigned sizes[6] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  for (int at = 0; at < known; ++at)
    if (kernels[at].host == kernel) return asked.launch(kernels[at].name, sizes, arguments, shared);
  complaint = "its host code launches a kernel that it does not define, or has more than 1,024";
  return 1;
}
__attribute__((weak)) int ratchet_hip_note(int code) { return code; }
int hipLaunchKernel(const void* kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                    void*) {
  return ratchet_hip_note(ratchet_hip_launch(kernel, grid, block, arguments, shared));
}
int hipLaunchCooperativeKernel(const void* kernel, Dim3 grid, Dim3 block, void** arguments,
                               unsigned shared, void*) {
  const uint64_t groups = uint64_t(grid.x) * grid.y * grid.z;
  if (groups * ((uint64_t(block.x) * block.y * block.z + 31) / 32) > 2048) {  // MOST_LIVE in run.hpp
    complaint = "a cooperative launch of more than 2,048 waves: fewer are emulated at a time";
    return 720;  // hipErrorCooperativeLaunchTooLarge
  }
  return ratchet_hip_launch(kernel, grid, block, arguments, shared);
}
// What hip_api.cpp asks for
int ratchet_hip_copy(void* to, const void* from, uint64_t bytes, int kind) {
  return at_home() ? asked.copy(to, from, bytes, kind) : 1;
}
void* ratchet_hip_symbol(const void* host, uint64_t* bytes) {
  for (int at = 0; at < known_variables && at_home(); ++at)
    if (variables[at].host == host) return asked.symbol(variables[at].name, bytes);
  return 0;
}
void* ratchet_hip_allocate(uint64_t bytes, int open) {
  if (!at_home()) return 0;
  return open ? asked.allocate_open(bytes) : asked.allocate(bytes);
}
int ratchet_hip_fill(void* place, int value, uint64_t bytes) {
  return at_home() ? asked.fill(place, value, bytes) : 1;
}
int ratchet_hip_fact(const char* name) { return at_home() ? asked.fact(name) : 0; }
// Let the host's code reach the GPU's memory, or no longer
int ratchet_hip_open(int allowed) { return asked.open && at_home() ? asked.open(allowed) : 1; }
int ratchet_hip_product(const void* product) { return at_home() ? asked.product(product) : 1; }
// A program's exit, where the link has --wrap=exit
void __real_exit(int code) __attribute__((weak, noreturn));
__attribute__((noreturn)) void __wrap_exit(int code) {
  if (asked.exit) asked.exit(code);
  __real_exit(code);
}
const char* ratchet_hip_target(void) { return asked.target; }
const char* ratchet_hip_device(void) { return asked.device; }
int hipMalloc(void** place, size_t bytes) {
  *place = ratchet_hip_allocate(bytes, 0);
  return *place ? 0 : 2;
}
int hipFree(void* place) { return at_home() ? asked.release(place) : 1; }
int hipMemsetAsync(void* place, int value, size_t bytes, void*) { return ratchet_hip_fill(place, value, bytes); }
int hipMemset(void* place, int value, size_t bytes) { return ratchet_hip_fill(place, value, bytes); }
__attribute__((weak)) int hipGetLastError(void) { return 0; }
__attribute__((weak)) int hipDeviceSynchronize(void) { return 0; }
}
