// Packing: a matrix operand, bf16 or fp32 with any row stride, into the panels that the micro-kernels read.
//
// An operand is X[p][k]: p runs over rows of A (or columns of B), k over the summed dimension. One of its two
// strides is 1. Panels are PANEL wide in p; a *unit* is 32 bits: a pair of bf16 (k, k+1), or one fp32.
//   k-major   panel[k_unit][p]         what broadcasts (A) and vectors (B, also AMX's VNNI tiles) are read from
//   tile      block[16 p][16 k_unit]   rows of 64 bytes: AMX's A tiles
// Whatever lies outside of the operand is packed as zero, and k is padded to BLOCK units, so that no micro-kernel
// has edges. Panels are contiguous: no two rows of one are 4 KB apart, whatever the source's stride.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(RATCHET_ISA_AMX) || defined(RATCHET_ISA_AVX512_BF16)
#define GEMM_PAIRS 1
#define GEMM_AVX512 1
#elif defined(RATCHET_ISA_AVX512)
#define GEMM_AVX512 1
#elif defined(RATCHET_ISA_AVX2)
#define GEMM_AVX2 1
#endif

#if defined(GEMM_AVX512) || defined(GEMM_AVX2)
#define GEMM_VECTORS 1
#include <immintrin.h>
#endif

constexpr int64_t FP32 = 0, BF16 = 1;
#if defined(GEMM_AVX2)
constexpr int64_t BLOCK = 8;  // units in a packed block, both ways
#else
constexpr int64_t BLOCK = 16;
#endif
#if defined(GEMM_PAIRS)
constexpr int64_t UNIT = 2;  // elements of k in a unit
#else
constexpr int64_t UNIT = 1;
#endif
enum class Order { k_major, tile };

struct Operand {
    const void* data;
    int64_t dtype;
    int64_t p_stride, k_stride;  // in elements
};

static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static inline int64_t units_of(int64_t k) { return (k + UNIT - 1) / UNIT; }
static inline int64_t padded_units(int64_t k) { return round_up(units_of(k), BLOCK); }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static inline float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
static inline float float_of_bf16(uint16_t half) { return float_of_bits(static_cast<uint32_t>(half) << 16); }

// Round to nearest even; a NaN stays a (quiet) NaN.
static inline uint16_t bf16_of_float(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

#if defined(GEMM_AVX512)

typedef __m512i Units;
typedef __mmask16 First;
static inline Units no_units() { return _mm512_setzero_si512(); }
static inline void store_units(uint32_t* to, Units x) { _mm512_storeu_si512(to, x); }
static inline void store_halves(uint32_t* low, uint32_t* high, Units x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm512_castsi512_si256(x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm512_extracti64x4_epi64(x, 1));
}

static inline __mmask16 first16(int64_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1); }

static inline __m512 floats_of_bf16(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Sixteen elements as fp32.
template <int64_t DTYPE>
static inline __m512 load_floats(const void* data, int64_t at, __mmask16 mask) {
    if (DTYPE == BF16) return floats_of_bf16(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + at));
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(data) + at);
}

// Sixteen elements rounded to bf16. Without AVX512-BF16 the rounding is done on integers.
static inline __m256i halves_of_floats(__m512 x) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, sum, quiet), 16));
#endif
}

#if defined(GEMM_PAIRS)
template <int64_t DTYPE>
static inline __m512i load_halves(const void* data, int64_t at, __mmask16 mask) {
    if (DTYPE == BF16)
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + at));
    return _mm512_cvtepu16_epi32(halves_of_floats(_mm512_maskz_loadu_ps(mask, static_cast<const float*>(data) + at)));
}

// One p: 32 elements along k become 16 pairs.
template <int64_t DTYPE>
static inline __m512i units_along_k(const void* data, int64_t at, int64_t valid) {
    if (DTYPE == BF16) {
        const __mmask32 mask = valid >= 32 ? 0xffffffffu : (1u << valid) - 1;
        return _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + at);
    }
    const float* from = static_cast<const float*>(data) + at;
    const __m256i low = halves_of_floats(_mm512_maskz_loadu_ps(first16(valid), from));
    const __m256i high = halves_of_floats(_mm512_maskz_loadu_ps(first16(valid - 16), from + 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Sixteen p: rows k and k+1 interleaved.
template <int64_t DTYPE>
static inline __m512i units_along_p(const void* data, int64_t at, int64_t k_stride, int64_t valid_k, __mmask16 mask) {
    const __m512i even = load_halves<DTYPE>(data, at, valid_k > 0 ? mask : 0);
    const __m512i odd = load_halves<DTYPE>(data, at + k_stride, valid_k > 1 ? mask : 0);
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
}
#else
template <int64_t DTYPE>
static inline __m512i units_along_k(const void* data, int64_t at, int64_t valid) {
    return _mm512_castps_si512(load_floats<DTYPE>(data, at, first16(valid)));
}
template <int64_t DTYPE>
static inline __m512i units_along_p(const void* data, int64_t at, int64_t, int64_t valid_k, __mmask16 mask) {
    return _mm512_castps_si512(load_floats<DTYPE>(data, at, valid_k > 0 ? mask : 0));
}
#endif

// A 16 x 16 transpose of 32-bit units in registers.
static inline void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

static inline First first_units(int64_t n) { return first16(n); }

#elif defined(GEMM_AVX2)

typedef __m256i Units;
typedef int64_t First;  // how many
static inline First first_units(int64_t n) { return n < 0 ? 0 : min64(n, 8); }
static inline Units no_units() { return _mm256_setzero_si256(); }
static inline void store_units(uint32_t* to, Units x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
static inline void store_halves(uint32_t* low, uint32_t* high, Units x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_castsi256_si128(x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_extracti128_si256(x, 1));
}

template <int64_t DTYPE>
static inline Units load_units(const void* data, int64_t at, First count) {
    if (DTYPE == BF16) {
        const uint16_t* from = static_cast<const uint16_t*>(data) + at;
        alignas(16) uint16_t some[8] = {};
        if (count < 8) std::memcpy(some, from, static_cast<std::size_t>(count) * 2), from = some;
        return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
    }
    const float* from = static_cast<const float*>(data) + at;
    if (count == 8) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_castps_si256(_mm256_maskload_ps(from, mask));
}
template <int64_t DTYPE>
static inline Units units_along_k(const void* data, int64_t at, int64_t valid) {
    return load_units<DTYPE>(data, at, first_units(valid));
}
template <int64_t DTYPE>
static inline Units units_along_p(const void* data, int64_t at, int64_t, int64_t valid_k, First count) {
    return valid_k > 0 ? load_units<DTYPE>(data, at, count) : no_units();
}

// An 8 x 8 transpose of 32-bit units in registers.
static inline void transpose(Units r[8]) {
    Units t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) r[i] = t[i];
}

#endif

#if defined(GEMM_VECTORS)

// BLOCK p by BLOCK units, from (p, k) on; `panel` is half of BLOCK or a multiple, `kup` the panel's units.
template <int64_t DTYPE, int64_t PANEL, Order ORDER>
static inline void pack_block(const Operand& x, int64_t p, int64_t k, int64_t valid_p, int64_t valid_k, uint32_t* to,
                              int64_t p_block, int64_t k_block, int64_t kup) {
    Units rows[BLOCK];
    const bool along_k = x.k_stride == 1;
    if (along_k) {
        for (int i = 0; i < BLOCK; ++i)
            rows[i] = i < valid_p ? units_along_k<DTYPE>(x.data, (p + i) * x.p_stride + k, valid_k) : no_units();
    } else {
        for (int i = 0; i < BLOCK; ++i)
            rows[i] = units_along_p<DTYPE>(x.data, (k + i * UNIT) * x.k_stride + p, x.k_stride, valid_k - i * UNIT, first_units(valid_p));
    }
    if (along_k != (ORDER == Order::tile)) transpose(rows);
    if (PANEL == BLOCK / 2) {
        uint32_t* low = to + p_block * BLOCK * kup + k_block * BLOCK * PANEL;
        for (int i = 0; i < BLOCK; ++i) store_halves(low + i * PANEL, low + PANEL * (kup + i), rows[i]);
        return;
    }
    constexpr int64_t PER_PANEL = PANEL / BLOCK > 0 ? PANEL / BLOCK : 1;
    uint32_t* at = to + p_block / PER_PANEL * PANEL * kup + k_block * BLOCK * PANEL + p_block % PER_PANEL * BLOCK;
    for (int i = 0; i < BLOCK; ++i) store_units(at + i * PANEL, rows[i]);
}

template <int64_t DTYPE, int64_t PANEL, Order ORDER>
static void pack_strip_of(const Operand& x, int64_t p, int64_t valid_p, int64_t k, int64_t valid_k, uint32_t* to) {
    const int64_t kup = padded_units(valid_k), p_blocks = (valid_p + BLOCK - 1) / BLOCK, k_blocks = kup / BLOCK;
    const bool along_k = x.k_stride == 1;  // read the source in its own order: few pages and streams at a time
    for (int64_t step = 0; step < p_blocks * k_blocks; ++step) {
        const int64_t p_block = along_k ? step / k_blocks : step % p_blocks;
        const int64_t k_block = along_k ? step % k_blocks : step / p_blocks;
        const int64_t p_done = p_block * BLOCK, k_done = k_block * BLOCK * UNIT;
        pack_block<DTYPE, PANEL, ORDER>(x, p + p_done, k + k_done, min64(BLOCK, valid_p - p_done),
                                        min64(BLOCK * UNIT, valid_k - k_done), to, p_block, k_block, kup);
    }
}

#else  // portable: one element at a time, units are fp32, always k-major

template <int64_t DTYPE, int64_t PANEL, Order ORDER>
static void pack_strip_of(const Operand& x, int64_t p, int64_t valid_p, int64_t k, int64_t valid_k, uint32_t* to) {
    const int64_t kup = padded_units(valid_k);
    float* out = reinterpret_cast<float*>(to);
    for (int64_t panel = 0; panel * PANEL < valid_p; ++panel)
        for (int64_t i = 0; i < kup; ++i)
            for (int64_t j = 0; j < PANEL; ++j) {
                const int64_t row = panel * PANEL + j, at = (p + row) * x.p_stride + (k + i) * x.k_stride;
                const bool inside = row < valid_p && i < valid_k;
                float value = 0;
                if (inside && DTYPE == BF16) value = float_of_bf16(static_cast<const uint16_t*>(x.data)[at]);
                if (inside && DTYPE == FP32) value = static_cast<const float*>(x.data)[at];
                out[(panel * kup + i) * PANEL + j] = value;
            }
}

#endif

// Rows p .. p + valid_p of `x`, elements k .. k + valid_k, to panels at `to` (valid_p rounded up to BLOCK and PANEL).
template <int64_t PANEL, Order ORDER = Order::k_major>
static void pack_strip(const Operand& x, int64_t p, int64_t valid_p, int64_t k, int64_t valid_k, uint32_t* to) {
    if (x.dtype == BF16)
        pack_strip_of<BF16, PANEL, ORDER>(x, p, valid_p, k, valid_k, to);
    else
        pack_strip_of<FP32, PANEL, ORDER>(x, p, valid_p, k, valid_k, to);
}
