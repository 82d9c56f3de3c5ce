// Micro-kernels: C[MR][NR] (+)= A panel . B panel over `ku` units of k, in registers, summed in fp32.
//
//   AMX            32 x 32   2 x 2 tiles of accumulators, 2 of A, 2 of B
//   AVX512-BF16     8 x 48   24 zmm of accumulators, vdpbf16ps
//   AVX-512         8 x 48   the same in fp32 (bf16 is widened when packed)
//   AVX2            4 x 24   12 ymm of accumulators
//   portable        4 x 24   the same in vector extensions of the compiler: NEON or plain SSE
//
// micro(ku, a, b, c, ld, vectors, accumulate): `vectors` says how many VECTOR-wide columns of the panel are
// wanted, the others are left out. c has room for MR rows of vectors * VECTOR floats, `ld` floats apart.
#pragma once
#include "amx_tiles.h"
#include "gemm_pack.h"

#if defined(RATCHET_ISA_AMX)

constexpr int64_t MR = 32, NR = 32, VECTOR = 16, A_PANEL = 16, B_PANEL = 16, KC = 512;
constexpr Order A_ORDER = Order::tile;

template <int VECTORS>
static inline void micro_of(int64_t ku, const uint32_t* a, const uint32_t* b, int64_t kup, float* c, int64_t ld, bool accumulate) {
    const int64_t row = ld * 4;
    if (accumulate) {
        tile_load<0>(c, row);
        tile_load<2>(c + 16 * ld, row);
        if (VECTORS == 2) {
            tile_load<1>(c + 16, row);
            tile_load<3>(c + 16 * ld + 16, row);
        }
    } else {
        tile_zero<0>();
        tile_zero<1>();
        tile_zero<2>();
        tile_zero<3>();
    }
    const uint32_t *a1 = a + 16 * kup, *b1 = b + 16 * kup;
    for (int64_t k = 0; k < ku; k += BLOCK) {
        tile_load<4>(a + k * 16, 64);
        tile_load<6>(b + k * 16, 64);
        tile_load<5>(a1 + k * 16, 64);
        tile_dpbf16ps<0, 4, 6>();
        tile_dpbf16ps<2, 5, 6>();
        if (VECTORS == 2) {
            tile_load<7>(b1 + k * 16, 64);
            tile_dpbf16ps<1, 4, 7>();
            tile_dpbf16ps<3, 5, 7>();
        }
    }
    tile_store<0>(c, row);
    tile_store<2>(c + 16 * ld, row);
    if (VECTORS == 2) {
        tile_store<1>(c + 16, row);
        tile_store<3>(c + 16 * ld + 16, row);
    }
}

static inline void micro(int64_t ku, int64_t kup, const uint32_t* a, const uint32_t* b, float* c, int64_t ld, int vectors, bool accumulate) {
    if (vectors == 2)
        micro_of<2>(ku, a, b, kup, c, ld, accumulate);
    else
        micro_of<1>(ku, a, b, kup, c, ld, accumulate);
}

struct MicroScope {  // what a thread needs around its micro-kernels
    AmxScope tiles{amx_full_config()};
};
static inline bool micro_available() { return amx_permitted(); }

#elif defined(GEMM_VECTORS)

constexpr Order A_ORDER = Order::k_major;
#if defined(GEMM_AVX512)
constexpr int64_t MR = 8, NR = 48, VECTOR = 16, A_PANEL = 8, B_PANEL = 48, KC = 2048;
typedef __m512 Wide;
static inline Wide load_wide(const float* from) { return _mm512_loadu_ps(from); }
static inline void store_wide(float* to, Wide x) { _mm512_storeu_ps(to, x); }
static inline Wide repeat(uint32_t a) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(a))); }
static inline Wide multiply_add(Wide sum, Wide a, Wide b) {
#if defined(GEMM_PAIRS)
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    return _mm512_fmadd_ps(a, b, sum);
#endif
}
#else
constexpr int64_t MR = 4, NR = 24, VECTOR = 8, A_PANEL = 4, B_PANEL = 24, KC = 256;  // 24 KB of B in L1
typedef __m256 Wide;
static inline Wide load_wide(const float* from) { return _mm256_loadu_ps(from); }
static inline void store_wide(float* to, Wide x) { _mm256_storeu_ps(to, x); }
static inline Wide repeat(uint32_t a) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(a))); }
static inline Wide multiply_add(Wide sum, Wide a, Wide b) { return _mm256_fmadd_ps(a, b, sum); }
#endif

// Not inlined: among the registers of its callers GCC keeps columns in memory.
template <int VECTORS, class Left>
static __attribute__((noinline)) void micro_from(int64_t ku, Left left, const uint32_t* b, float* c, int64_t ld, bool accumulate) {
    Wide sum[MR][VECTORS];
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < VECTORS; ++j) sum[i][j] = accumulate ? load_wide(c + i * ld + j * VECTOR) : Wide{};
    for (int64_t k = 0; k < ku; ++k, b += NR) {
        Wide columns[VECTORS];
        for (int j = 0; j < VECTORS; ++j) {
            columns[j] = load_wide(reinterpret_cast<const float*>(b + j * VECTOR));
            asm("" : "+v"(columns[j]));  // keeps GCC from reading it from memory again for every row
        }
        for (int i = 0; i < MR; ++i) {
            const Wide repeated = repeat(left(i, k));
            for (int j = 0; j < VECTORS; ++j) sum[i][j] = multiply_add(sum[i][j], repeated, columns[j]);
        }
    }
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < VECTORS; ++j) store_wide(c + i * ld + j * VECTOR, sum[i][j]);
}

template <class Left>
static inline void micro_left(int64_t ku, Left left, const uint32_t* b, float* c, int64_t ld, int vectors, bool accumulate) {
    if (vectors == 3)
        micro_from<3>(ku, left, b, c, ld, accumulate);
    else if (vectors == 2)
        micro_from<2>(ku, left, b, c, ld, accumulate);
    else
        micro_from<1>(ku, left, b, c, ld, accumulate);
}

static inline void micro(int64_t ku, int64_t, const uint32_t* a, const uint32_t* b, float* c, int64_t ld, int vectors, bool accumulate) {
    micro_left(ku, [a](int i, int64_t k) { return a[k * MR + i]; }, b, c, ld, vectors, accumulate);
}

#if defined(GEMM_AVX2)
#define GEMM_READS_ROWS 1
// The same with A where it lies: `rows` rows of fp32, `a_ld` apart. Of the rows beyond, the last one stands in.
static inline void micro_rows(int64_t ku, const float* a, int64_t a_ld, int64_t rows, const uint32_t* b, float* c, int64_t ld, int vectors,
                              bool accumulate) {
    const uint32_t* first = reinterpret_cast<const uint32_t*>(a);
    const uint32_t *second = first + (rows > 1 ? a_ld : 0), *third = second + (rows > 2 ? a_ld : 0), *fourth = third + (rows > 3 ? a_ld : 0);
    const auto left = [=](int i, int64_t k) { return i == 0 ? first[k] : i == 1 ? second[k] : i == 2 ? third[k] : fourth[k]; };
    micro_left(ku, left, b, c, ld, vectors, accumulate);
}
#endif

struct MicroScope {};
static inline bool micro_available() { return true; }

#else

constexpr int64_t MR = 4, NR = 24, VECTOR = 8, A_PANEL = 4, B_PANEL = 24, KC = 256;  // 24 KB of B in L1
constexpr Order A_ORDER = Order::k_major;
typedef float Vector __attribute__((vector_size(32), aligned(4)));

template <int VECTORS>
static inline void micro_of(int64_t ku, const float* a, const float* b, float* c, int64_t ld, bool accumulate) {
    Vector sum[MR][VECTORS];
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < VECTORS; ++j) {
            sum[i][j] = Vector{};
            if (accumulate) std::memcpy(&sum[i][j], c + i * ld + j * VECTOR, sizeof(Vector));
        }
    for (int64_t k = 0; k < ku; ++k, a += MR, b += NR) {
        Vector columns[VECTORS];
        std::memcpy(columns, b, sizeof columns);
        for (int i = 0; i < MR; ++i)
            for (int j = 0; j < VECTORS; ++j) sum[i][j] += columns[j] * a[i];
    }
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < VECTORS; ++j) std::memcpy(c + i * ld + j * VECTOR, &sum[i][j], sizeof(Vector));
}

static inline void micro(int64_t ku, int64_t, const uint32_t* a, const uint32_t* b, float* c, int64_t ld, int vectors, bool accumulate) {
    const float *fa = reinterpret_cast<const float*>(a), *fb = reinterpret_cast<const float*>(b);
    if (vectors == 3)
        micro_of<3>(ku, fa, fb, c, ld, accumulate);
    else if (vectors == 2)
        micro_of<2>(ku, fa, fb, c, ld, accumulate);
    else
        micro_of<1>(ku, fa, fb, c, ld, accumulate);
}

struct MicroScope {};
static inline bool micro_available() { return true; }

#endif

// The units of k that a micro-kernel runs over: AMX takes whole blocks (padded with zeros), the others exactly k.
static inline int64_t micro_units(int64_t k) {
#if defined(RATCHET_ISA_AMX)
    return padded_units(k);
#else
    return units_of(k);
#endif
}

// C of `rows` x `cols` at `c`: straight into it where the block is whole, through a small one at the edges.
static inline void micro_edge(int64_t ku, int64_t kup, const uint32_t* a, const uint32_t* b, float* c, int64_t ld, int64_t rows,
                              int64_t cols, bool accumulate) {
    const int vectors = static_cast<int>((cols + VECTOR - 1) / VECTOR);
    if (rows == MR && cols == vectors * VECTOR) return micro(ku, kup, a, b, c, ld, vectors, accumulate);
    alignas(64) float block[MR * NR];
    micro(ku, kup, a, b, block, NR, vectors, false);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) c[i * ld + j] = block[i * NR + j] + (accumulate ? c[i * ld + j] : 0.0f);
}
