// A GPU driver's virtual memory calls over memfd and mmap, with the names of CUDA or of HIP.
//
// Device addresses are addresses of this process; a handle is a number of ours; what is leaked is
// counted. RATCHET_FAKE_REFUSES names one call that refuses; a file `refuses` beside the library does
// so in a sandbox alone, whose home is /tmp; a file `most` has the bytes of the largest memory that
// is to be had. Built with -DHIP and -DHIP_VERSION=N for HIP's names.
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#ifdef HIP
#define NAME(x) hip##x
#else
#define NAME(x) cu##x
#endif
#define CALL(x) extern "C" int NAME(x)

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, NOT_SUPPORTED = 801 };
static const size_t GRANULE = 2 << 20;

// Laid out as the headers have it; the sizes are checked by the tests against ctypes' own.
struct location { int type, id; };
struct properties {
    int type, handle_types;
    location place;
    void* win32;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
};
struct permission { location place; int flags; };

static std::mutex guard;
static std::map<uint64_t, int> handles;             // handle -> descriptor
static std::map<uint64_t, size_t> reserved, mapped; // address -> size
static uint64_t next_handle = 0x1000;

static bool refuses(const char* call);

static std::string told(const char* name) {
    Dl_info here;
    if (!dladdr((void*)refuses, &here)) return "";
    const std::string library = here.dli_fname;
    std::ifstream file(library.substr(0, library.rfind('/')) + name);
    std::string word;
    file >> word;
    return word;
}

static bool refuses(const char* call) {
    const char* named = getenv("RATCHET_FAKE_REFUSES");
    if (named) return !strcmp(named, call);
    const char* home = getenv("HOME");
    return home && !strcmp(home, "/tmp") && told("/refuses") == call;
}
#define GIVE_UP(call) if (refuses(call)) return NOT_SUPPORTED; std::lock_guard<std::mutex> held(guard)

static bool inside(const std::map<uint64_t, size_t>& ranges, uint64_t address, size_t size) {
    for (const auto& range : ranges)
        if (address >= range.first && address + size <= range.first + range.second) return true;
    return false;
}

CALL(Init)(unsigned) { return refuses("Init") ? NOT_SUPPORTED : OK; }

CALL(MemGetAllocationGranularity)(size_t* granule, const properties* asked, int option) {
    GIVE_UP("MemGetAllocationGranularity");
    if (asked->type != 1 || asked->handle_types != 1 || asked->place.type != 1) return INVALID_VALUE;
    if (option != 0) return INVALID_VALUE;
    *granule = GRANULE;
    return OK;
}

CALL(MemCreate)(uint64_t* handle, size_t size, const properties* asked, unsigned long long flags) {
    GIVE_UP("MemCreate");
    if (!size || size % GRANULE || flags || asked->win32) return INVALID_VALUE;
    if (asked->type != 1 || asked->handle_types != 1 || asked->place.type != 1) return INVALID_VALUE;
    const std::string most = told("/most");
    if (!most.empty() && size > std::stoull(most)) return OUT_OF_MEMORY;
    const int file = memfd_create("fake-device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size)) return OUT_OF_MEMORY;
    handles[*handle = next_handle++] = file;
    return OK;
}

CALL(MemExportToShareableHandle)(void* out, uint64_t handle, int type, unsigned long long flags) {
    GIVE_UP("MemExportToShareableHandle");
    if (!handles.count(handle)) return INVALID_HANDLE;
    if (type != 1 || flags) return INVALID_VALUE;
    *(int*)out = fcntl(handles[handle], F_DUPFD, 3);  // inheritable, as a driver may leave it
    return OK;
}

CALL(MemImportFromShareableHandle)(uint64_t* handle, void* given, int type) {
    GIVE_UP("MemImportFromShareableHandle");
    if (type != 1) return INVALID_VALUE;
#if defined(HIP) && HIP_VERSION < 70100000
    const int file = *(int*)given;
#else
    const int file = (int)(intptr_t)given;
#endif
    struct stat state;
    if (fstat(file, &state) || !S_ISREG(state.st_mode)) return INVALID_VALUE;
    handles[*handle = next_handle++] = fcntl(file, F_DUPFD_CLOEXEC, 3);
    return OK;
}

CALL(MemAddressReserve)(uint64_t* address, size_t size, size_t align, uint64_t hint, unsigned long long flags) {
    GIVE_UP("MemAddressReserve");
    if (!size || size % GRANULE || flags || align || hint) return INVALID_VALUE;
    char* found = (char*)mmap(nullptr, size + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return OUT_OF_MEMORY;
    char* start = (char*)(((uintptr_t)found + GRANULE - 1) / GRANULE * GRANULE);
    if (start > found) munmap(found, start - found);
    munmap(start + size, found + GRANULE - start);
    reserved[*address = (uint64_t)start] = size;
    return OK;
}

CALL(MemMap)(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    GIVE_UP("MemMap");
    if (address % GRANULE || size % GRANULE || offset || flags) return INVALID_VALUE;
    if (!handles.count(handle)) return INVALID_HANDLE;
    if (!inside(reserved, address, size) || inside(mapped, address, size)) return INVALID_VALUE;
    struct stat state;
    if (fstat(handles[handle], &state) || (size_t)state.st_size < size) return INVALID_VALUE;
    // Nobody may touch it before MemSetAccess.
    if (mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handles[handle], 0) == MAP_FAILED)
        return OUT_OF_MEMORY;
    mapped[address] = size;
    return OK;
}

CALL(MemSetAccess)(uint64_t address, size_t size, const permission* asked, size_t count) {
    GIVE_UP("MemSetAccess");
    if (count != 1 || asked->place.type != 1 || asked->flags != 3) return INVALID_VALUE;
    if (!inside(mapped, address, size)) return INVALID_VALUE;
    return mprotect((void*)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}

CALL(MemUnmap)(uint64_t address, size_t size) {
    GIVE_UP("MemUnmap");
    if (!mapped.count(address) || mapped[address] != size) return INVALID_VALUE;
    mmap((void*)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    mapped.erase(address);
    return OK;
}

CALL(MemRelease)(uint64_t handle) {
    GIVE_UP("MemRelease");
    if (!handles.count(handle)) return INVALID_HANDLE;
    close(handles[handle]);
    handles.erase(handle);
    return OK;
}

CALL(MemAddressFree)(uint64_t address, size_t size) {
    GIVE_UP("MemAddressFree");
    if (!reserved.count(address) || reserved[address] != size) return INVALID_VALUE;
    for (const auto& range : mapped)
        if (range.first >= address && range.first < address + size) return INVALID_VALUE;
    munmap((void*)address, size);
    reserved.erase(address);
    return OK;
}

static const char* word(int code) {
    switch (code) {
        case INVALID_VALUE: return "FAKE_INVALID_VALUE";
        case OUT_OF_MEMORY: return "FAKE_OUT_OF_MEMORY";
        case INVALID_HANDLE: return "FAKE_INVALID_HANDLE";
        case NOT_SUPPORTED: return "FAKE_NOT_SUPPORTED";
        default: return "FAKE_UNKNOWN";
    }
}
#ifdef HIP
extern "C" int hipRuntimeGetVersion(int* version) { *version = HIP_VERSION; return OK; }
extern "C" const char* hipGetErrorName(int code) { return word(code); }
#else
extern "C" int cuGetErrorName(int code, const char** text) { *text = word(code); return OK; }
extern "C" int cuCtxResetPersistingL2Cache(void) { return refuses("CtxResetPersistingL2Cache") ? 1 : OK; }
#endif

extern "C" void fake_held(int64_t* counts) {
    std::lock_guard<std::mutex> held(guard);
    counts[0] = handles.size();
    counts[1] = mapped.size();
    counts[2] = reserved.size();
}
extern "C" void fake_sizes(int64_t* sizes) {
    sizes[0] = sizeof(location);
    sizes[1] = sizeof(properties);
    sizes[2] = sizeof(permission);
    sizes[3] = offsetof(properties, place);
    sizes[4] = offsetof(properties, win32);
    sizes[5] = offsetof(properties, flags);
    sizes[6] = offsetof(permission, flags);
}
