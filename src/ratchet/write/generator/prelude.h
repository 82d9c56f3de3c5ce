//: base
#include "ratchet_abi.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#define R_INLINE static inline __attribute__((always_inline))
R_INLINE int64_t whole_min(int64_t a, int64_t b) { return a < b ? a : b; }
R_INLINE int64_t whole_max(int64_t a, int64_t b) { return a > b ? a : b; }
R_INLINE uint32_t r_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
R_INLINE float r_float(uint32_t u) { return __builtin_bit_cast(float, u); }
//: from_bf16
R_INLINE float r_from_bf16(uint16_t h) { return r_float((uint32_t)h << 16); }
//: to_bf16
R_INLINE uint16_t r_to_bf16(float x) {
    const uint32_t u = r_bits(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0xffffu : rounded);  // torch's NaN on AVX-512
}
//: from_f16
R_INLINE float r_from_f16(uint16_t h) { return (float)__builtin_bit_cast(_Float16, h); }
//: to_f16
R_INLINE uint16_t r_to_f16(float x) { return __builtin_bit_cast(uint16_t, (_Float16)x); }
//: from_e4m3
R_INLINE float r_from_e4m3(uint8_t h) {
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
    const float value = r_float(rest << 20) * 0x1p120f;
    return r_float(r_bits(rest == 0x7fu ? __builtin_nanf("") : value) | sign);
}
//: to_e4m3
R_INLINE uint8_t r_to_e4m3(float x) {
    const uint32_t u = r_bits(x), sign = (u >> 24) & 0x80u, rest = u & 0x7fffffffu;
    // Below 2^-6 the codes are evenly spaced: adding 2^14 rounds to them.
    const uint32_t small = r_bits(r_float(rest) + 16384.f) - r_bits(16384.f);
    const uint32_t odd = (rest >> 20) & 1u;
    const uint32_t large = (rest - (120u << 23) + 0x7ffffu + odd) >> 20;
    const uint32_t code = rest > 0x7f800000u ? 0x7fu : rest > 0x43e80000u ? E4M3_BEYOND
                          : rest < 0x3c800000u ? small : large;
    return (uint8_t)(code | sign);
}
//: from_e5m2
R_INLINE float r_from_e5m2(uint8_t h) {
    return (float)__builtin_bit_cast(_Float16, (uint16_t)((uint16_t)h << 8));
}
//: to_e5m2
R_INLINE uint8_t r_to_e5m2(float x) {
    const uint32_t u = r_bits(x), sign = (u >> 24) & 0x80u, rest = u & 0x7fffffffu;
    const uint32_t small = r_bits(r_float(rest) + 128.f) - r_bits(128.f);
    const uint32_t odd = (rest >> 21) & 1u;
    const uint32_t large = (rest - (112u << 23) + 0xfffffu + odd) >> 21;
    const uint32_t code = rest > 0x7f800000u ? 0x7fu : rest >= 0x47800000u ? 0x7cu
                          : rest < 0x38800000u ? small : large;
    return (uint8_t)(code | sign);
}
//: max
// NaN wins, as in torch.
R_INLINE float r_max(float a, float b) { return (b > a || b != b) ? b : a; }
R_INLINE double r_max(double a, double b) { return (b > a || b != b) ? b : a; }
R_INLINE int64_t r_max(int64_t a, int64_t b) { return a > b ? a : b; }
R_INLINE int32_t r_max(int32_t a, int32_t b) { return a > b ? a : b; }
#pragma omp declare reduction(r_max : float : omp_out = r_max(omp_out, omp_in)) initializer(omp_priv = -__builtin_inff())
#pragma omp declare reduction(r_max : double : omp_out = r_max(omp_out, omp_in)) initializer(omp_priv = -__builtin_inf())
//: min
R_INLINE float r_min(float a, float b) { return (b < a || b != b) ? b : a; }
R_INLINE double r_min(double a, double b) { return (b < a || b != b) ? b : a; }
R_INLINE int64_t r_min(int64_t a, int64_t b) { return a < b ? a : b; }
R_INLINE int32_t r_min(int32_t a, int32_t b) { return a < b ? a : b; }
#pragma omp declare reduction(r_min : float : omp_out = r_min(omp_out, omp_in)) initializer(omp_priv = __builtin_inff())
#pragma omp declare reduction(r_min : double : omp_out = r_min(omp_out, omp_in)) initializer(omp_priv = __builtin_inf())
//: exp
// e^x: x = n ln2 + r with |r| <= ln2/2 (Cody and Waite, two-part ln2), Taylor to r^7; within 2 ulp.
// 0 below 2^-125, since denormal numbers are slow.
R_INLINE float r_exp(float x) {
    const float t = x < -87.5f ? -87.5f : x > 89.f ? 89.f : x;
    const float n = (t * 1.44269504f + 12582912.f) - 12582912.f;
    float r = __builtin_fmaf(n, -0.693359375f, t);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float p = 1.98412698e-4f;
    p = __builtin_fmaf(p, r, 1.38888889e-3f);
    p = __builtin_fmaf(p, r, 8.33333333e-3f);
    p = __builtin_fmaf(p, r, 4.16666667e-2f);
    p = __builtin_fmaf(p, r, 1.66666667e-1f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r * r, r) + 1.f;
    return p * r_float((uint32_t)((int32_t)n + 126) << 23) * 2.f;
}
R_INLINE double r_exp(double x) { return exp(x); }
//: exp2 exp
R_INLINE float r_exp2(float x) { return (float)exp2((double)x); }
R_INLINE double r_exp2(double x) { return exp2(x); }
//: log
// x = 2^k m with m in [2/3, 4/3): log(1 + f) by a polynomial in f (Cephes' logf), below 1 ulp + 1.
R_INLINE float r_log(float x) {
    const float scaled = x < 1.17549435e-38f ? x * 8388608.f : x;
    const uint32_t u = r_bits(scaled) - 0x3f2aaaabu;
    const int32_t k = (int32_t)u >> 23;
    const float f = r_float((u & 0x7fffffu) + 0x3f2aaaabu) - 1.f;
    const float e = (float)k - (x < 1.17549435e-38f ? 23.f : 0.f);
    const float z = f * f;
    float p = 7.0376836292e-2f;
    p = __builtin_fmaf(p, f, -1.1514610310e-1f);
    p = __builtin_fmaf(p, f, 1.1676998740e-1f);
    p = __builtin_fmaf(p, f, -1.2420140846e-1f);
    p = __builtin_fmaf(p, f, 1.4249322787e-1f);
    p = __builtin_fmaf(p, f, -1.6668057665e-1f);
    p = __builtin_fmaf(p, f, 2.0000714765e-1f);
    p = __builtin_fmaf(p, f, -2.4999993993e-1f);
    p = __builtin_fmaf(p, f, 3.3333331174e-1f);
    p = __builtin_fmaf(p, f * z, __builtin_fmaf(e, -2.12194440e-4f, -0.5f * z)) + f;
    p = __builtin_fmaf(e, 0.693359375f, p);
    p = x == 0.f ? -__builtin_inff() : p;
    p = x < 0.f ? __builtin_nanf("") : p;
    return (x != x || x == __builtin_inff()) ? x : p;
}
R_INLINE double r_log(double x) { return log(x); }
//: log2 log
R_INLINE float r_log2(float x) { return (float)(log2((double)x)); }
R_INLINE double r_log2(double x) { return log2(x); }
//: log1p log
// log(1 + x) corrected for the rounding of 1 + x (W. Kahan).
R_INLINE float r_log1p(float x) {
    const float u = 1.f + x;
    const float away = u - 1.f;
    const float found = r_log(u) * (x / away);
    return (away == 0.f || x == __builtin_inff()) ? x : found;
}
R_INLINE double r_log1p(double x) { return log1p(x); }
//: expm1 exp
R_INLINE float r_expm1(float x) {
    float p = 2.48015873e-5f;
    p = __builtin_fmaf(p, x, 1.98412698e-4f);
    p = __builtin_fmaf(p, x, 1.38888889e-3f);
    p = __builtin_fmaf(p, x, 8.33333333e-3f);
    p = __builtin_fmaf(p, x, 4.16666667e-2f);
    p = __builtin_fmaf(p, x, 1.66666667e-1f);
    p = __builtin_fmaf(p, x, 0.5f);
    p = __builtin_fmaf(p, x * x, x);
    return __builtin_fabsf(x) < 0.5f ? p : r_exp(x) - 1.f;
}
R_INLINE double r_expm1(double x) { return expm1(x); }
//: sigmoid exp
R_INLINE float r_sigmoid(float x) { return 1.f / (1.f + r_exp(-x)); }
R_INLINE double r_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
//: tanh exp
// Near 0 by Cephes' polynomial, elsewhere by the exponential.
R_INLINE float r_tanh(float x) {
    const float a = __builtin_fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = __builtin_fmaf(p, z, 2.06390887954e-2f);
    p = __builtin_fmaf(p, z, -5.37397155531e-2f);
    p = __builtin_fmaf(p, z, 1.33314422036e-1f);
    p = __builtin_fmaf(p, z, -3.33332819422e-1f);
    const float small = __builtin_fmaf(p * z, x, x);
    const float large = 1.f - 2.f / (r_exp(2.f * a) + 1.f);
    return a < 0.625f ? small : __builtin_copysignf(large, x);
}
R_INLINE double r_tanh(double x) { return tanh(x); }
//: erf exp
// Both branches of the minimax polynomials by N. Juffa (https://stackoverflow.com/a/35148199).
R_INLINE float r_erf(float x) {
    const float a = __builtin_fabsf(x), t = a > 4.f ? 4.f : a, s = t * t;
    float r = __builtin_fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
    const float u = __builtin_fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
    r = __builtin_fmaf(r, s, u);
    r = __builtin_fmaf(r, t, -1.06777877e-1f);
    r = __builtin_fmaf(r, t, -6.34846687e-1f);
    r = __builtin_fmaf(r, t, -1.28717512e-1f);
    r = __builtin_fmaf(r, t, -t);
    const float large = __builtin_copysignf(1.f - r_exp(r), x);
    float q = -5.96761703e-4f;
    q = __builtin_fmaf(q, s, 4.99119423e-3f);
    q = __builtin_fmaf(q, s, -2.67681349e-2f);
    q = __builtin_fmaf(q, s, 1.12819925e-1f);
    q = __builtin_fmaf(q, s, -3.76125336e-1f);
    q = __builtin_fmaf(q, s, 1.28379166e-1f);
    return t < 0.927734375f ? __builtin_fmaf(q, x, x) : large;
}
R_INLINE double r_erf(double x) { return erf(x); }
//: fma
R_INLINE float r_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
R_INLINE double r_fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
//: sqrt
R_INLINE float r_sqrt(float x) { return __builtin_sqrtf(x); }
R_INLINE double r_sqrt(double x) { return __builtin_sqrt(x); }
//: rsqrt
R_INLINE float r_rsqrt(float x) { return 1.f / __builtin_sqrtf(x); }
R_INLINE double r_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
//: reciprocal
R_INLINE float r_reciprocal(float x) { return 1.f / x; }
R_INLINE double r_reciprocal(double x) { return 1.0 / x; }
//: abs
R_INLINE float r_abs(float x) { return __builtin_fabsf(x); }
R_INLINE double r_abs(double x) { return __builtin_fabs(x); }
R_INLINE int64_t r_abs(int64_t x) { return x < 0 ? -x : x; }
R_INLINE int32_t r_abs(int32_t x) { return x < 0 ? -x : x; }
//: relu
R_INLINE float r_relu(float x) { return x > 0.f ? x : x != x ? x : 0.f; }
R_INLINE double r_relu(double x) { return x > 0.0 ? x : x != x ? x : 0.0; }
R_INLINE int64_t r_relu(int64_t x) { return x > 0 ? x : 0; }
R_INLINE int32_t r_relu(int32_t x) { return x > 0 ? x : 0; }
//: sign
R_INLINE float r_sign(float x) { return (float)((x > 0.f) - (x < 0.f)); }
R_INLINE double r_sign(double x) { return (double)((x > 0.0) - (x < 0.0)); }
R_INLINE int64_t r_sign(int64_t x) { return (x > 0) - (x < 0); }
R_INLINE int32_t r_sign(int32_t x) { return (x > 0) - (x < 0); }
//: floor
R_INLINE float r_floor(float x) { return __builtin_floorf(x); }
R_INLINE double r_floor(double x) { return __builtin_floor(x); }
//: ceil
R_INLINE float r_ceil(float x) { return __builtin_ceilf(x); }
R_INLINE double r_ceil(double x) { return __builtin_ceil(x); }
//: trunc
R_INLINE float r_trunc(float x) { return __builtin_truncf(x); }
R_INLINE double r_trunc(double x) { return __builtin_trunc(x); }
//: round
R_INLINE float r_round(float x) { return __builtin_nearbyintf(x); }
R_INLINE double r_round(double x) { return __builtin_nearbyint(x); }
//: isnan
R_INLINE bool r_isnan(float x) { return x != x; }
R_INLINE bool r_isnan(double x) { return x != x; }
//: isinf
R_INLINE bool r_isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
R_INLINE bool r_isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
//: pow
R_INLINE float r_pow(float x, float y) { return powf(x, y); }
R_INLINE double r_pow(double x, double y) { return pow(x, y); }
R_INLINE int64_t r_pow(int64_t x, int64_t y) {
    int64_t found = 1;
    for (; y > 0; y >>= 1, x *= x) if (y & 1) found *= x;
    return found;
}
//: fmod
R_INLINE float r_fmod(float x, float y) { return fmodf(x, y); }
R_INLINE double r_fmod(double x, double y) { return fmod(x, y); }
R_INLINE int64_t r_fmod(int64_t x, int64_t y) { return y ? x % y : 0; }
R_INLINE int32_t r_fmod(int32_t x, int32_t y) { return y ? x % y : 0; }
//: remainder
R_INLINE float r_remainder(float x, float y) { const float m = fmodf(x, y); return m != 0.f && (m < 0.f) != (y < 0.f) ? m + y : m; }
R_INLINE double r_remainder(double x, double y) { const double m = fmod(x, y); return m != 0.0 && (m < 0.0) != (y < 0.0) ? m + y : m; }
R_INLINE int64_t r_remainder(int64_t x, int64_t y) { const int64_t m = y ? x % y : 0; return m && (m < 0) != (y < 0) ? m + y : m; }
R_INLINE int32_t r_remainder(int32_t x, int32_t y) { return (int32_t)r_remainder((int64_t)x, (int64_t)y); }
//: floor_div
R_INLINE int64_t r_floor_div(int64_t x, int64_t y) {
    const int64_t q = y ? x / y : 0;
    return y && x % y && (x < 0) != (y < 0) ? q - 1 : q;
}
//: trunc_div
R_INLINE int64_t r_trunc_div(int64_t x, int64_t y) { return y ? x / y : 0; }
//: sin
// Reduced by pi/2 in double, then Cephes' polynomials.
R_INLINE float r_turned(float x, int32_t quarter) {
    const double n = __builtin_nearbyint((double)x * 0.63661977236758134);
    const float r = (float)__builtin_fma(n, -6.123233995736766e-17, __builtin_fma(n, -1.5707963267948966, (double)x));
    const float z = r * r;
    float s = __builtin_fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = __builtin_fmaf(s, z, -1.6666654611e-1f);
    s = __builtin_fmaf(s * z, r, r);
    float c = __builtin_fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = __builtin_fmaf(c, z, 4.166664568298827e-2f);
    c = __builtin_fmaf(c * z, z, __builtin_fmaf(-0.5f, z, 1.f));
    const int32_t turn = (int32_t)(int64_t)n + quarter;
    const float found = (turn & 1) ? c : s;
    return (turn & 2) ? -found : found;
}
R_INLINE float r_sin(float x) { return r_turned(x, 0); }
R_INLINE double r_sin(double x) { return sin(x); }
//: cos sin
R_INLINE float r_cos(float x) { return r_turned(x, 1); }
R_INLINE double r_cos(double x) { return cos(x); }
//: scan_logsumexp exp log
// One step of a running log of a sum of exponentials: `most` so far, and the sum relative to it.
R_INLINE float r_scan_logsumexp(float& most, float& total, float x) {
    const float next = (x > most || x != x) ? x : most;
    const bool infinite = __builtin_fabsf(next) == __builtin_inff();
    total = infinite ? 1.f : total * r_exp(most - next) + r_exp(x - next);
    most = next;
    return infinite ? next : most + r_log(total);
}
R_INLINE double r_scan_logsumexp(double& most, double& total, double x) {
    const double next = (x > most || x != x) ? x : most;
    const bool infinite = fabs(next) == __builtin_inf();
    total = infinite ? 1.0 : total * exp(most - next) + exp(x - next);
    most = next;
    return infinite ? next : most + log(total);
}
//: order
#include <algorithm>
#include <vector>
template <typename T> R_INLINE bool r_before(T a, T b) { return a < b || (b != b && a == a); }
template <typename T> R_INLINE bool r_after(T a, T b) { return a > b || (a != a && b == b); }
//: stream
#include <immintrin.h>
// Copies the whole cache lines of a long block past the caches. A line that is written past them in
// part is read from memory first, so short blocks and the ends of long ones are copied as usual.
R_INLINE void r_stream(void* to, const void* from, size_t bytes) {
#if defined(__AVX__)
    char* target = (char*)to;
    const char* source = (const char*)from;
    const size_t head = -(uintptr_t)target & 63;
    if (bytes >= head + 1024) {
        memcpy(target, source, head);
        bytes -= head, target += head, source += head;
        for (; bytes >= 64; bytes -= 64, target += 64, source += 64)
            for (int part = 0; part < 64; part += 32)
                _mm256_stream_si256(
                    (__m256i*)(target + part), _mm256_loadu_si256((const __m256i*)(source + part)));
    }
    memcpy(target, source, bytes);
#else
    memcpy(to, from, bytes);
#endif
}
