// AMX tiles for bf16 matrix products, and a scalar emulation of them.
//
// Eight tile registers of at most 16 rows x 64 bytes. tile_dpbf16ps<C, A, B>() does C += A.B for
//   A  16 x 32 bf16, row-major                      (rows of 64 bytes)
//   B  16 x 16 pairs of bf16, "VNNI": row k holds B[2k][n], B[2k+1][n] for n = 0..15
//   C  16 x 16 fp32
// Source: Intel 64 and IA-32 Software Developer's Manual, vol. 2, TDPBF16PS and LDTILECFG.
//
// With -DRATCHET_AMX_EMULATE everything below runs in scalar code, with the instruction's own order of
// summation, its flushing of denormals and its faults (a trap), so that AMX kernels are tested anywhere.
//
// Use:  if (!amx_permitted()) return DECLINED;      once per call, outside the parallel region
//       AmxScope tiles(amx_full_config());          in every thread, inside the parallel region
#pragma once
#include <cstdint>
#include <cstring>

#if defined(RATCHET_AMX_EMULATE)
#include <cmath>
#else
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

struct alignas(64) AmxConfig {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(AmxConfig) == 64, "LDTILECFG reads 64 bytes");

// Every tile 16 rows x 64 bytes: what full blocks need. Edges are padded with zeros when packed.
static inline AmxConfig amx_full_config() {
    AmxConfig config;
    std::memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
        config.rows[tile] = 16;
        config.row_bytes[tile] = 64;
    }
    return config;
}

#if defined(RATCHET_AMX_EMULATE)

struct AmxState {
    AmxConfig config;
    unsigned char data[8][16][64];
};
inline AmxState& amx_state() {
    static thread_local AmxState state;
    return state;
}

static inline bool amx_permitted() { return true; }

static inline void amx_require(bool holds) {
    if (!holds) __builtin_trap();  // the processor would raise #UD or #GP here
}

static inline void tile_config(const AmxConfig& config) {
    amx_require(config.palette == 1);
    AmxState& state = amx_state();
    std::memset(&state, 0, sizeof state);
    state.config = config;
    for (int tile = 0; tile < 8; ++tile)
        amx_require(config.rows[tile] <= 16 && config.row_bytes[tile] <= 64);
}

static inline void tile_release() { std::memset(&amx_state(), 0, sizeof(AmxState)); }

template <int TILE>
static inline void tile_zero() {
    amx_require(amx_state().config.rows[TILE] > 0);
    std::memset(amx_state().data[TILE], 0, sizeof amx_state().data[TILE]);
}

// `stride_bytes` is the distance of two rows in memory.
template <int TILE>
static inline void tile_load(const void* from, int64_t stride_bytes) {
    AmxState& state = amx_state();
    const int rows = state.config.rows[TILE], bytes = state.config.row_bytes[TILE];
    amx_require(rows > 0 && bytes > 0);
    std::memset(state.data[TILE], 0, sizeof state.data[TILE]);
    for (int row = 0; row < rows; ++row)
        std::memcpy(state.data[TILE][row], static_cast<const char*>(from) + row * stride_bytes, bytes);
}

template <int TILE>
static inline void tile_store(void* to, int64_t stride_bytes) {
    AmxState& state = amx_state();
    const int rows = state.config.rows[TILE], bytes = state.config.row_bytes[TILE];
    amx_require(rows > 0 && bytes > 0);
    for (int row = 0; row < rows; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride_bytes, state.data[TILE][row], bytes);
}

// Denormals count as zero and are flushed to zero, whatever MXCSR says.
static inline float amx_flush(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

static inline float amx_bf16(const unsigned char* from) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return amx_flush(x);
}

// Even and odd k are summed apart, then together, then onto C.
static inline void amx_dot(unsigned char* c, const unsigned char* a, const unsigned char (*b)[64], int pairs, int n) {
    float even = 0, odd = 0, sum;
    for (int k = 0; k < pairs; ++k) {
        even = amx_flush(std::fma(amx_bf16(a + 4 * k), amx_bf16(b[k] + 4 * n), even));
        odd = amx_flush(std::fma(amx_bf16(a + 4 * k + 2), amx_bf16(b[k] + 4 * n + 2), odd));
    }
    std::memcpy(&sum, c + 4 * n, 4);
    sum = amx_flush(amx_flush(sum) + amx_flush(even + odd));
    std::memcpy(c + 4 * n, &sum, 4);
}

template <int C, int A, int B>
static inline void tile_dpbf16ps() {
    static_assert(C != A && C != B && A != B, "TDPBF16PS faults when two of its tiles are one");
    AmxState& state = amx_state();
    const AmxConfig& config = state.config;
    const int pairs = config.row_bytes[A] / 4;
    amx_require(config.rows[C] > 0 && config.rows[C] == config.rows[A] && pairs == config.rows[B]);
    amx_require(config.row_bytes[C] == config.row_bytes[B]);
    for (int row = 0; row < config.rows[C]; ++row)
        for (int n = 0; n < config.row_bytes[C] / 4; ++n)
            amx_dot(state.data[C][row], state.data[A][row], state.data[B], pairs, n);
}

#else  // the processor's own tiles

// The kernel grants tile data per process, on request (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
static inline bool amx_request() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    const unsigned needed = (1u << 22) | (1u << 24);  // AMX-BF16, AMX-TILE
    if ((edx & needed) != needed) return false;
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

static inline bool amx_permitted() {
    static const bool permitted = amx_request();
    return permitted;
}

// Inline assembly instead of the intrinsics: it needs no target attribute (so it inlines anywhere), and it
// declares the memory that it touches. gcc 12's macros do not, so stores may be moved past them.
static inline void tile_config(const AmxConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

static inline void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int TILE>
static inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
static inline void tile_load(const void* from, int64_t stride_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride_bytes) : "memory");
}

template <int TILE>
static inline void tile_store(void* to, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(stride_bytes) : "memory");
}

template <int C, int A, int B>
static inline void tile_dpbf16ps() {
    static_assert(C != A && C != B && A != B, "TDPBF16PS faults when two of its tiles are one");
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif

// Tiles configured for this thread while the object lives.
struct AmxScope {
    explicit AmxScope(const AmxConfig& config) { tile_config(config); }
    ~AmxScope() { tile_release(); }
    AmxScope(const AmxScope&) = delete;
    AmxScope& operator=(const AmxScope&) = delete;
};
