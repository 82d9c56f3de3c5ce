// A register of fp32 lanes, read from and written to fp32 or bf16 memory, on any instruction set.
//
// RATCHET_ISA_AMX, _AVX512_BF16 and _AVX512 use AVX-512 intrinsics (16 lanes), _AVX2 those of AVX2
// with FMA (8); RATCHET_ISA_PORTABLE is plain C++ over the vector types of GCC and Clang, which lower
// to whatever the machine has.
#pragma once
#include "ratchet_abi.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#if !defined(RATCHET_ISA_PORTABLE) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)
#define VEC_AVX512 1
#include <immintrin.h>
#if defined(__AVX512BF16__) && (defined(RATCHET_ISA_AVX512_BF16) || defined(RATCHET_ISA_AMX))
#define VEC_BF16 1
#endif
#elif defined(RATCHET_ISA_AVX2) && defined(__AVX2__) && defined(__FMA__)
#define VEC_AVX2 1
#include <immintrin.h>
#endif

#if defined(VEC_AVX512)
enum { LANES = 16 };
typedef __m512 vf;
#elif defined(VEC_AVX2)
enum { LANES = 8 };
typedef __m256 vf;
#else
enum { LANES = 16 };
typedef float vf __attribute__((vector_size(4 * LANES)));
#endif
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

static inline vf vset(float x) { return x - vf{}; }

static inline vu vbits(vf x) { vu u; memcpy(&u, &x, sizeof u); return u; }
static inline vf vfrom_bits(vu u) { vf x; memcpy(&x, &u, sizeof x); return x; }

#if defined(VEC_AVX512)

static inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// A NaN in x stays: these instructions return their second operand when one is NaN.
static inline vf vclamp(vf x, float low, float high) {
    return _mm512_max_ps(vset(low), _mm512_min_ps(vset(high), x));
}
static inline vf vround(vf x) { return _mm512_roundscale_ps(x, 0); }
static inline vf vscale(vf x, vf power) { return _mm512_scalef_ps(x, power); }
static inline vf vsqrt(vf x) { return _mm512_sqrt_ps(x); }
static inline vf vabs(vf x) { return _mm512_abs_ps(x); }
static inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline float vsum(vf x) { return _mm512_reduce_add_ps(x); }
// take[i] ? a[i] : b[i], where take is a < limit
static inline vf vif_less(vf x, float limit, vf a, vf b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, vset(limit), _CMP_LT_OQ), b, a);
}
static inline vf vwiden(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline __m256i vnarrow(vf x) {
#if defined(VEC_BF16)
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16));
#endif
}
static inline __mmask16 vmask(int64_t n) { return (__mmask16)((1u << n) - 1u); }
static inline vf vload32(const float* p) { return _mm512_loadu_ps(p); }
static inline vf vload32_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(vmask(n), p); }
static inline void vstore32(float* p, vf x) { _mm512_storeu_ps(p, x); }
static inline void vstore32_n(float* p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, vmask(n), x); }
static inline vf vload16(const uint16_t* p) {
    return vwiden(_mm256_loadu_si256((const __m256i*)p));
}
static inline vf vload16_n(const uint16_t* p, int64_t n) {
    return vwiden(_mm256_maskz_loadu_epi16(vmask(n), p));
}
static inline void vstore16(uint16_t* p, vf x) {
    _mm256_storeu_si256((__m256i*)p, vnarrow(x));
}
static inline void vstore16_n(uint16_t* p, vf x, int64_t n) {
    _mm256_mask_storeu_epi16(p, vmask(n), vnarrow(x));
}
static inline vf vround_bf16(vf x) { return vwiden(vnarrow(x)); }

#else

#if defined(VEC_AVX2)
static inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vclamp(vf x, float low, float high) {
    return _mm256_max_ps(vset(low), _mm256_min_ps(vset(high), x));
}
static inline vf vround(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vsqrt(vf x) { return _mm256_sqrt_ps(x); }
static inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline __m256i vmask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vload32_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, vmask(n)); }
static inline void vstore32_n(float* p, vf x, int64_t n) { _mm256_maskstore_ps(p, vmask(n), x); }
#else
static inline vf vfma(vf a, vf b, vf c) { return a * b + c; }
static inline vf vclamp(vf x, float low, float high) {
    x = x > vset(high) ? vset(high) : x;
    return x < vset(low) ? vset(low) : x;
}
static inline vf vround(vf x) { return (x + vset(12582912.f)) - vset(12582912.f); }
static inline vf vsqrt(vf x) {
    for (int i = 0; i < LANES; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
static inline vf vmax(vf a, vf b) { return a > b ? a : b; }
static inline vf vload32_n(const float* p, int64_t n) {
    vf x = vset(0.f);
    memcpy(&x, p, (size_t)n * 4);
    return x;
}
static inline void vstore32_n(float* p, vf x, int64_t n) { memcpy(p, &x, (size_t)n * 4); }
#endif

// x * 2^power for |power| < 252: in two steps, so that results beyond the exponent's range round.
static inline vf vscale(vf x, vf power) {
    vi whole = __builtin_convertvector(power, vi);
    vi half = whole >> 1;
    vi rest = whole - half;
    return x * vfrom_bits((vu)((half + 127) << 23)) * vfrom_bits((vu)((rest + 127) << 23));
}
static inline vf vabs(vf x) { return vfrom_bits(vbits(x) & 0x7fffffffu); }
static inline float vsum(vf x) {
    float v[LANES];
    memcpy(v, &x, sizeof v);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) v[i] += v[i + width];
    return v[0];
}
static inline vf vif_less(vf x, float limit, vf a, vf b) { return x < vset(limit) ? a : b; }
static inline vf vwiden(vh h) { return vfrom_bits(__builtin_convertvector(h, vu) << 16); }
static inline vh vnarrow(vf x) {
    vu u = vbits(x);
    vu rounded = u + 0x7fffu + ((u >> 16) & 1u);
    vu chosen = (vu)(x != x) ? (u | 0x400000u) : rounded;
    return __builtin_convertvector(chosen >> 16, vh);
}
static inline vf vload32(const float* p) { vf x; memcpy(&x, p, sizeof x); return x; }
static inline void vstore32(float* p, vf x) { memcpy(p, &x, sizeof x); }
static inline vf vload16(const uint16_t* p) { vh h; memcpy(&h, p, sizeof h); return vwiden(h); }
static inline vf vload16_n(const uint16_t* p, int64_t n) {
    vh h = {0};
    memcpy(&h, p, (size_t)n * 2);
    return vwiden(h);
}
static inline void vstore16(uint16_t* p, vf x) { vh h = vnarrow(x); memcpy(p, &h, sizeof h); }
static inline void vstore16_n(uint16_t* p, vf x, int64_t n) {
    vh h = vnarrow(x);
    memcpy(p, &h, (size_t)n * 2);
}
static inline vf vround_bf16(vf x) { return vwiden(vnarrow(x)); }

#endif

// The first n lanes of x, and `other` in the rest.
static inline vf vfirst(vf x, int64_t n, float other) {
    for (int64_t i = n; i < LANES; ++i) x[i] = other;
    return x;
}
static inline float vlargest(vf x) {
    float largest = x[0];
    for (int i = 1; i < LANES; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// Memory of either dtype. The branch on `bf16` is the same for a whole row and costs nothing next
// to the memory traffic.
struct Lane {
    char* data;
    bool bf16;

    Lane at(int64_t element) const { return Lane{data + element * (bf16 ? 2 : 4), bf16}; }
    vf load(int64_t i) const {
        return bf16 ? vload16((const uint16_t*)data + i) : vload32((const float*)data + i);
    }
    vf load(int64_t i, int64_t n) const {
        if (n >= LANES) return load(i);
        return bf16 ? vload16_n((const uint16_t*)data + i, n)
                    : vload32_n((const float*)data + i, n);
    }
    void store(int64_t i, vf x, int64_t n) const {
        if (bf16) {
            if (n >= LANES) vstore16((uint16_t*)data + i, x);
            else vstore16_n((uint16_t*)data + i, x, n);
        } else {
            if (n >= LANES) vstore32((float*)data + i, x);
            else vstore32_n((float*)data + i, x, n);
        }
    }
};

static inline bool is_lane(const ratchet_tensor* t) {
    return t->dtype == RATCHET_F32 || t->dtype == RATCHET_BF16;
}
static inline Lane lane_of(const ratchet_tensor* t) {
    return Lane{(char*)t->data, t->dtype == RATCHET_BF16};
}

// A tensor seen as rows: the last dimension contiguous, the leading ones collapsed to one stride.
struct Rows {
    Lane lane;
    int64_t count, width, stride;

    Lane row(int64_t r) const { return lane.at(r * stride); }
};

static inline bool rows_of(const ratchet_tensor* t, Rows* out) {
    if (!is_lane(t) || t->ndim < 1) return false;
    int64_t last = t->ndim - 1;
    int64_t width = t->size[last], count = 1, stride = width;
    if (width > 1 && t->stride[last] != 1) return false;
    int64_t next = 0;  // the stride that the dimension to the left must have
    for (int64_t d = last - 1; d >= 0; --d) {
        if (t->size[d] == 1) continue;
        if (next == 0) stride = t->stride[d];
        else if (t->stride[d] != next) return false;
        next = t->stride[d] * t->size[d];
        count *= t->size[d];
    }
    // A dimension of size 0 leaves nothing to do, whatever the strides say.
    *out = Rows{lane_of(t), count, width, stride};
    return true;
}

// Sum of a contiguous vector's elements in a fixed order, four accumulators wide.
template <typename Term>
static inline float sum_over(int64_t width, Term term) {
    vf a = vset(0.f), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) {
        a = term(a, i, LANES);
        b = term(b, i + LANES, LANES);
        c = term(c, i + 2 * LANES, LANES);
        d = term(d, i + 3 * LANES, LANES);
    }
    for (; i < width; i += LANES) a = term(a, i, width - i);
    return vsum((a + b) + (c + d));
}

// Work that is too small to pay for waking the other threads (about 5 us).
static const int64_t PARALLEL_ELEMENTS = 16384;

static inline int threads_for(int64_t elements) {
    return elements < PARALLEL_ELEMENTS ? 1 : omp_get_max_threads();
}
