// exp in fp32, about 1 ulp: e^x = 2^n e^r with |r| <= ln2 / 2, ln2 split in two (Cody and Waite), e^r by a polynomial of degree 6
// (minimax, from Cephes' expf). Below -104 the result is zero; a NaN stays a NaN.
#pragma once
#include <cmath>

#include "gemm_pack.h"

constexpr float EXP_LOWEST = -104.0f, EXP_LOG2E = 1.44269504088896341f;
constexpr float EXP_LN2_HIGH = 0.693359375f, EXP_LN2_LOW = -2.12194440e-4f;
constexpr float EXP_P[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

#if defined(GEMM_AVX512)
static inline __m512 exp16(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(EXP_LOWEST), x);  // in this order: the second operand is what a NaN gives
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(EXP_LOG2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_HIGH), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_LOW), r);
    __m512 p = _mm512_set1_ps(EXP_P[0]);
    for (int i = 1; i < 6; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_P[i]));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}
#endif

// The same for one number (what the compiler can vectorise: no branch, no call).
static inline float exp1(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * EXP_LOG2E + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    const float n = shifted - 12582912.0f;
    const float r = (x - n * EXP_LN2_HIGH) - n * EXP_LN2_LOW;
    float p = EXP_P[0];
    for (int i = 1; i < 6; ++i) p = p * r + EXP_P[i];
    p = r * r * p + (r + 1.0f);
    const int32_t exponent = static_cast<int32_t>(n == n ? n : 0.0f) + 127;
    return p * float_of_bits(static_cast<uint32_t>(exponent) << 23);
}
