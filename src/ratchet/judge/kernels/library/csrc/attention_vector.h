// Sixteen floats as one value, on any instruction set, with exp and bf16 conversion.
//
// A `floats` is one register with AVX-512, and two or four narrower ones elsewhere: attention's panels
// are sixteen queries wide everywhere, so that one algorithm serves all variants.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#define RATCHET_INLINE static inline __attribute__((always_inline))

#if defined(RATCHET_LANES)  // a test asks for the narrow code
#elif defined(__AVX512F__)
#define RATCHET_LANES 16
#elif defined(__AVX__) && defined(__FMA__)
#define RATCHET_LANES 8
#else
#define RATCHET_LANES 4
#endif
#if defined(__AVX512BF16__) && RATCHET_LANES == 16
#define RATCHET_ROUNDS_BF16
#endif

typedef float lanes __attribute__((vector_size(4 * RATCHET_LANES)));
typedef int32_t lane_bits __attribute__((vector_size(4 * RATCHET_LANES)));
typedef lanes lanes_in_memory __attribute__((aligned(4), may_alias));

static const int PARTS = 16 / RATCHET_LANES;
static const int PANEL = 16;  // queries (or feature columns) side by side in one `floats`

struct floats {
    lanes part[PARTS];
};

template <class F>
RATCHET_INLINE floats each(F f) {
    floats r;
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; ++i) r.part[i] = f(i);
    return r;
}

RATCHET_INLINE lanes lanes_of(float x) { return x - lanes{}; }
RATCHET_INLINE floats splat(float x) {
    return each([&](int) __attribute__((always_inline)) { return lanes_of(x); });
}
RATCHET_INLINE floats load(const float* p) {
    return each([&](int i) __attribute__((always_inline)) {
        return lanes(*reinterpret_cast<const lanes_in_memory*>(p + i * RATCHET_LANES));
    });
}
RATCHET_INLINE void store(float* p, floats a) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; ++i)
        *reinterpret_cast<lanes_in_memory*>(p + i * RATCHET_LANES) = a.part[i];
}
RATCHET_INLINE floats operator+(floats a, floats b) {
    return each([&](int i) __attribute__((always_inline)) { return a.part[i] + b.part[i]; });
}
RATCHET_INLINE floats operator-(floats a, floats b) {
    return each([&](int i) __attribute__((always_inline)) { return a.part[i] - b.part[i]; });
}
RATCHET_INLINE floats operator*(floats a, floats b) {
    return each([&](int i) __attribute__((always_inline)) { return a.part[i] * b.part[i]; });
}
RATCHET_INLINE floats multiply_add(floats a, floats b, floats c) {
    return each([&](int i) __attribute__((always_inline)) {
#if RATCHET_LANES == 16
        return (lanes)_mm512_fmadd_ps((__m512)a.part[i], (__m512)b.part[i], (__m512)c.part[i]);
#else
        return a.part[i] * b.part[i] + c.part[i];
#endif
    });
}
RATCHET_INLINE floats larger(floats a, floats b) {
    return each([&](int i) __attribute__((always_inline)) {
#if RATCHET_LANES == 16
        return (lanes)_mm512_max_ps((__m512)a.part[i], (__m512)b.part[i]);
#else
        return a.part[i] > b.part[i] ? a.part[i] : b.part[i];
#endif
    });
}

// a in the lanes from `first` on, `other` before it.
RATCHET_INLINE floats from_lane(int64_t first, floats a, float other) {
    const int start = first <= 0 ? 0 : first >= PANEL ? PANEL : static_cast<int>(first);
#if RATCHET_LANES == 16
    const __mmask16 keep = static_cast<__mmask16>(0xffffu << start);
    a.part[0] = (lanes)_mm512_mask_blend_ps(keep, (__m512)lanes_of(other), (__m512)a.part[0]);
    return a;
#else
    float at[PANEL];
    store(at, a);
    for (int i = 0; i < start; ++i) at[i] = other;
    return load(at);
#endif
}

// e^x for one register: at most 1.5 ulp where the result is normal, 0 below that, NaN for NaN.
// x = n log 2 + f (Cody and Waite, log 2 in two parts) with |f| <= log(2)/2; e^f by a minimax polynomial.
RATCHET_INLINE lanes exp_polynomial(lanes f) {
    lanes p = lanes_of(1.3836846000e-03f);
    p = p * f + 8.3748158043e-03f;
    p = p * f + 4.1668225569e-02f;
    p = p * f + 1.6666420170e-01f;
    p = p * f + 4.9999992081e-01f;
    p = p * f + 1.0f;
    return p * f + 1.0f;
}
RATCHET_INLINE lanes exp_lanes(lanes x) {
    const float log2_e = 1.44269504f, log_2_high = 0.693115234375f, log_2_low = 3.1946184945e-05f;
#if RATCHET_LANES == 16
    const __m512 v = _mm512_max_ps(_mm512_set1_ps(-700.0f), (__m512)x);  // NaN: the second operand
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(log2_e)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(log_2_high), v);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(log_2_low), f);
    return (lanes)_mm512_scalef_ps((__m512)exp_polynomial((lanes)f), n);
#else
    const lanes low = lanes_of(-87.0f), high = lanes_of(88.0f), magic = lanes_of(12582912.0f);
    const lane_bits under = x < low;
    lanes y = under ? low : x;
    y = y > high ? high : y;
    const lanes shifted = y * log2_e + magic, n = shifted - magic;
    const lanes f = (y - n * log_2_high) - n * log_2_low;
    const lane_bits power = (((lane_bits)shifted - (lane_bits)magic) + 127) << 23;
    const lanes p = exp_polynomial(f) * (lanes)power;
    return under ? lanes{} : p;
#endif
}
RATCHET_INLINE floats exp_of(floats x) {
    return each([&](int i) __attribute__((always_inline)) { return exp_lanes(x.part[i]); });
}

RATCHET_INLINE float sum_of(floats a) {
    float at[PANEL];
    store(at, a);
    for (int half = PANEL / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) at[i] += at[i + half];
    return at[0];
}

// bf16 ------------------------------------------------------------------------------------------

RATCHET_INLINE float bf16_to_float(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Round to nearest, ties to even; NaN stays NaN.
RATCHET_INLINE uint16_t float_to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

RATCHET_INLINE floats load(const uint16_t* p) {
#if RATCHET_LANES == 16
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {{(lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)}};
#else
    float at[PANEL];
    for (int i = 0; i < PANEL; ++i) at[i] = bf16_to_float(p[i]);
    return load(at);
#endif
}

RATCHET_INLINE void store(uint16_t* p, floats a) {
#if defined(RATCHET_ROUNDS_BF16)
    const __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)a.part[0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
#else
    float at[PANEL];
    store(at, a);
    for (int i = 0; i < PANEL; ++i) p[i] = float_to_bf16(at[i]);
#endif
}

// Only the first `count` of sixteen.
template <class T>
RATCHET_INLINE void store_some(T* p, floats a, int64_t count) {
    if (count >= PANEL) return store(p, a);
    T at[PANEL];
    store(at, a);
    for (int64_t i = 0; i < count; ++i) p[i] = at[i];
}

template <class T>
RATCHET_INLINE floats load_some(const T* p, int64_t count) {
    if (count >= PANEL) return load(p);
    T at[PANEL] = {};
    for (int64_t i = 0; i < count; ++i) at[i] = p[i];
    return load(at);
}

// Two neighbours of the summed dimension, as a panel wants them: bf16 side by side ("VNNI"), fp32 as
// two rows.
RATCHET_INLINE void store_pair(uint16_t* pairs, floats even, floats odd) {
#if defined(RATCHET_ROUNDS_BF16)
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)even.part[0]));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)odd.part[0]));
    _mm512_storeu_si512(pairs, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
    uint16_t low[PANEL], high[PANEL];
    store(low, even);
    store(high, odd);
    for (int i = 0; i < PANEL; ++i) {
        pairs[2 * i] = low[i];
        pairs[2 * i + 1] = high[i];
    }
#endif
}
RATCHET_INLINE void store_pair(float* pairs, floats even, floats odd) {
    store(pairs, even);
    store(pairs + PANEL, odd);
}

// Transposes 16 x 16 words: sixteen `in` rows, `in_stride` words apart, to sixteen `out` rows.
RATCHET_INLINE void transpose_words(const void* in, int64_t in_stride, void* out, int64_t out_stride) {
    const int32_t* from = static_cast<const int32_t*>(in);
    int32_t* to = static_cast<int32_t*>(out);
#if RATCHET_LANES == 16
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * in_stride);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        _mm512_storeu_si512(to + i * out_stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
        _mm512_storeu_si512(to + (8 + i) * out_stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
        _mm512_storeu_si512(to + (4 + i) * out_stride, _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88));
        _mm512_storeu_si512(to + (12 + i) * out_stride, _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd));
    }
#elif RATCHET_LANES == 8
    for (int part = 0; part < 4; ++part) {
        const float* rows = reinterpret_cast<const float*>(from) + part / 2 * 8 * in_stride + part % 2 * 8;
        float* columns = reinterpret_cast<float*>(to) + part % 2 * 8 * out_stride + part / 2 * 8;
        __m256 r[8], t[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows + i * in_stride);
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
            r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
            r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
            r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            _mm256_storeu_ps(columns + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
            _mm256_storeu_ps(columns + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
        }
    }
#else
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[j * out_stride + i] = from[i * in_stride + j];
#endif
}
