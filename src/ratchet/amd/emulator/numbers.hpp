// Types and arithmetic that the operations' expressions use. LANES, a wave's, stands before this.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

using u8 = uint8_t; using u16 = uint16_t; using u32 = uint32_t; using u64 = uint64_t;
using i16 = int16_t; using i32 = int32_t; using i64 = int64_t;
using f32 = float; using f64 = double;

template <class To, class From> inline To as(From x) { return __builtin_bit_cast(To, x); }
// Each bit of a byte as a word of ones or zeros
struct Spread {
    u32 of[256][8];
    Spread() { for (u32 byte = 0; byte < 256; byte++) for (u32 bit = 0; bit < 8; bit++) of[byte][bit] = 0 - (byte >> bit & 1); }
};
static const Spread SPREAD;
inline void spread(u64 mask, u32* t) {
    for (int i = 0; i < LANES / 8; i++) memcpy(t + 8 * i, SPREAD.of[mask >> 8 * i & 255], 32);
}
inline f32 half(u32 x) { return f32(as<_Float16>(u16(x))); }
inline u32 half_bits(f32 x) { return as<u16>(_Float16(x)); }
// FP16_OVFL of MODE: a finite result that is too large becomes the largest number, an infinite one stays
inline u32 half_bits(f32 x, bool clamps) { return half_bits(clamps && std::isfinite(x) ? std::fmin(std::fmax(x, -65504.0f), 65504.0f) : x); }
inline f32 f16_of(f64 x) {  // one rounding; what overflows stays finite, and `half_bits` decides
    const f32 y = f32(_Float16(x));
    return std::isinf(y) && std::isfinite(x) ? std::copysign(65536.0f, y) : y;
}
inline u32 bf16_of(f32 x) {  // nearest even
    u32 b = as<u32>(x);
    return x != x ? (b >> 16 | 64) : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline u32 toward_zero(f32 x) {
    u32 b = half_bits(x); f32 y = half(b);
    return std::fabs(y) > std::fabs(x) && std::isfinite(x) ? b - 1 : b;
}
inline u32 reversed(u32 x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1; x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4; return __builtin_bswap32(x);
}
inline u32 leading_signs(i64 a) { u64 x = u64(a < 0 ? ~a : a); return x ? u32(__builtin_clzll(x)) : ~0u; }
inline u32 leading_signs(i32 a) { u32 x = u32(a < 0 ? ~a : a); return x ? u32(__builtin_clz(x)) : ~0u; }
// Times two to the power of the scale's exponent, or over it
inline f32 by_scale(f32 x, f32 scale, bool over = false) {
    const i32 e = i32(as<u32>(scale) >> 23 & 255) - 127;
    return e == 128 ? std::numeric_limits<f32>::quiet_NaN() : std::ldexp(x, over ? -e : e);
}
inline f32 tiny_float(u32 x) { const f32 of[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}; return x & 8 ? -of[x & 7] : of[x & 7]; }
inline u64 two_floats(f32 a, f32 b) { return as<u32>(a) | u64(as<u32>(b)) << 32; }
template <class F> inline i32 to_i32(F a) {
    return a != a ? 0 : a >= F(2147483648.0) ? 0x7fffffff : a <= F(-2147483648.0) ? i32(0x80000000) : i32(a);
}
template <class F> inline u32 to_u32(F a) { return !(a > 0) ? 0 : a >= F(4294967296.0) ? ~0u : u32(i64(a)); }
template <class F> inline F smaller(F a, F b) { return a != a ? b : b != b ? a : a < b ? a : b < a ? b : std::signbit(a) ? a : b; }
template <class F> inline F larger(F a, F b) { return a != a ? b : b != b ? a : a > b ? a : b > a ? b : std::signbit(a) ? b : a; }
// The 1201 bits of 2 / pi after the point, from the top
constexpr u64 TWO_OVER_PI[] = {
    0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull, 0xdb6295993c439041ull, 0xfe5163abdebbc561ull, 0xb7246e3a424dd2e0ull,
    0x6492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull, 0xe99c7026b45f7e41ull, 0x3991d639835339f4ull,
    0x9c845f8bbdf9283bull, 0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull, 0x4f463f669e5fea2dull,
    0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull, 0x6bfb5fb11f8d5d08ull, 0x56033046fc7b0000ull};
// A segment of 53 of them, for the reduction of large angles
inline f64 angle_segment(f64 a, u32 segment) {
    const int exponent = int(as<u64>(a) >> 52 & 2047), shift = int(segment & 31) * 53 + (exponent > 1077 ? exponent - 1077 : 0);
    u64 found = 0;
    for (int at = shift; at < shift + 53; at++) found = found << 1 | (at < 1201 ? TWO_OVER_PI[at / 64] >> (63 - at % 64) & 1 : 0);
    return scalbn(f64(found), -53 - shift + (exponent >= 1968 ? 128 : 0));
}
template <class F> inline F greatest(F a, F b) { return a != a ? a : b != b ? b : larger(a, b); }  // NaN stays
template <class F> inline F smallest(F a, F b) { return a != a ? a : b != b ? b : smaller(a, b); }
inline f32 middle(f32 a, f32 b, f32 c) {
    if (a != a || b != b || c != c) return smaller(smaller(a, b), c);
    return larger(smaller(a, b), smaller(larger(a, b), c));
}
template <class T> inline T least(T a, T b) { return a < b ? a : b; }
template <class T> inline T most(T a, T b) { return a > b ? a : b; }
inline f32 small_float(u32 x, int mantissa, bool ocp) {  // FNUZ: bias one more, one NaN, no infinities; OCP: as IEEE, but E4M3
    int bias = (mantissa == 3 ? 7 : 15) + !ocp, e = x >> mantissa & ((1 << (7 - mantissa)) - 1), f = x & ((1 << mantissa) - 1); f32 sign = x & 128 ? -1 : 1;
    if (!ocp && x == 128) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 3 && (x & 127) == 127) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 2 && e == 31) return f ? std::numeric_limits<f32>::quiet_NaN() : sign * std::numeric_limits<f32>::infinity();
    return sign * std::ldexp(f32(e ? f + (1 << mantissa) : f), (e ? e : 1) - bias - mantissa);
}
// The nearest, ties to even. Too large a number or an infinity: with `clamps` the largest number, else
// an infinity where the format has one, else NaN ("Float to FP8 Conversion" of the MI300 manual).
inline u32 small_bits(f32 x, int mantissa, bool ocp, bool clamps) {
    const int bias = (mantissa == 3 ? 7 : 15) + !ocp, top = ocp ? (mantissa == 3 ? 0x7e : 0x7b) : 0x7f; const u32 sign = std::signbit(x) ? 128 : 0;
    if (x != x) return ocp ? sign | 0x7f : 0x80;
    const f64 most_of = small_float(u32(top), mantissa, ocp), size = std::fabs(f64(x));
    const int e = std::isfinite(x) && x != 0 ? most(int(std::ilogb(size)), 1 - bias) : 1 - bias;
    const f64 q = std::isfinite(x) ? std::nearbyint(std::ldexp(size, mantissa - e)) : 0;
    if (!std::isfinite(x) || std::ldexp(q, e - mantissa) > most_of) {
        if (clamps) return sign | u32(top);
        return !ocp ? 0x80 : mantissa == 3 ? sign | 0x7f : sign | 0x7c;
    }
    const u32 bits = u32(q) + (u32(e + bias - 1) << mantissa);  // q's leading one counts as 1 in the exponent's field, a carry too
    return !ocp && !bits ? 0 : sign | bits;
}
inline f32 fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
inline f32 flushed(f32 x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline f32 unfused(f32 a, f32 b, f32 c) { return flushed(flushed(flushed(a) * flushed(b)) + flushed(c)); }  // two roundings, no denormals
// 2^n times 2^f with f in -1/2 to 1/2, by f's Taylor series (the next term is below 6e-9); two factors, as n may be that of a denormal.
// libm's exp2f is as exact, but a call for each lane.
inline f32 exp2_of(f32 x) {
    const f32 y = x < -160.0f ? -160.0f : x > 130.0f ? 130.0f : x, n = (y + 12582912.0f) - 12582912.0f, f = y - n;
    f32 p = 1.5252734e-5f;
    for (const f32 c : {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f}) p = fma_f32(p, f, c);
    const i32 e = y == y ? i32(n) : 0, low = e >> 1;
    return p * as<f32>((low + 127) << 23) * as<f32>((e - low + 127) << 23);
}
inline i32 low24(u32 x) { return i32(x << 8) >> 8; }
inline f64 power(i32 e) { return as<f64>(u64(1023 + e) << 52); }
inline f32 scaled(f32 a, i32 e) { return f32(f64(a) * power(e < -400 ? -400 : e > 400 ? 400 : e)); }
inline f64 scaled(f64 a, i32 e) { return std::scalbn(a, e); }
inline f32 sine(f32 a) { return f32(std::sin(6.283185307179586 * (a - std::floor(f64(a))))); }
inline f32 cosine(f32 a) { return f32(std::cos(6.283185307179586 * (a - std::floor(f64(a))))); }
template <class F> inline F fraction(F a, F most_of) { F r = a - std::floor(a); return r > most_of ? most_of : r; }
template <class F> inline i32 exponent_of(F a) { int e = 0; if (std::isfinite(a)) std::frexp(a, &e); return e; }
template <class F> inline F mantissa_of(F a) { int e; return std::isfinite(a) ? std::frexp(a, &e) : a; }
inline i32 field(i32 a, u32 at, u32 width) { return width ? i32(u32(a >> at) << (32 - width)) >> (32 - width) : 0; }
inline u64 bits_of(u64 a, u32 at, u32 width) { return a >> at & (width >= 64 ? ~0ull : (1ull << width) - 1); }
inline i64 signed_bits_of(u64 a, u32 at, u32 width) {
    return !width ? 0 : width >= 64 ? i64(a) >> at : i64(u64(i64(a) >> at) << (64 - width)) >> (64 - width);
}
inline u32 permuted(u32 a, u32 b, u32 c) {
    u64 both = u64(a) << 32 | b; u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = c >> 8 * i & 255;
        u32 byte = s < 8 ? u32(both >> 8 * s) & 255 : s < 12 ? (both >> (16 * (s - 8) + 15) & 1 ? 255 : 0) : s == 12 ? 0 : 255;
        r |= byte << 8 * i;
    }
    return r;
}
inline f64 bf16(u32 x) { return as<f32>(x << 16); }
// The sum of products of parts, with a sign or without
template <int BITS, bool A, bool B> inline i64 dot(u32 a, u32 b) {
    i64 r = 0;
    for (int i = 0; i < 32; i += BITS) {
        const u32 x = a >> i << (32 - BITS), y = b >> i << (32 - BITS);
        r += (A ? i64(i32(x) >> (32 - BITS)) : i64(x >> (32 - BITS))) * (B ? i64(i32(y) >> (32 - BITS)) : i64(y >> (32 - BITS)));
    }
    return r;
}
template <int BITS> inline u32 differences(u32 a, u32 b) {
    u32 r = 0;
    for (int i = 0; i < 32; i += BITS) { const i32 d = i32(a >> i & ((1u << BITS) - 1)) - i32(b >> i & ((1u << BITS) - 1)); r += u32(d < 0 ? -d : d); }
    return r;
}
inline u32 packed16(i32 a, i32 b) { return (u32(most(least(a, 32767), -32768)) & 0xffff) | u32(most(least(b, 32767), -32768)) << 16; }
inline u32 three_bits(u32 a, u32 b, u32 c, u32 table) {
    u32 r = 0;
    for (int i = 0; i < 8; i++) if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}
// Division in f32 and f64, with the manual's exponents for each
template <class F> struct Division;
template <> struct Division<f32> { using Bits = u32; static constexpr int STEP = 64, FAR = 96, SMALL = 23, ONE = 127; static constexpr Bits SIGN = 1u << 31, QUIET = 1u << 22; };
template <> struct Division<f64> { using Bits = u64; static constexpr int STEP = 128, FAR = 768, SMALL = 53, ONE = 1023; static constexpr Bits SIGN = 1ull << 63, QUIET = 1ull << 51; };
template <class F> using Bits = typename Division<F>::Bits;
template <class F> inline bool tiny(F x) { return x != 0 && std::fabs(x) < std::numeric_limits<F>::min(); }
template <class F> inline bool same(F a, F b) { return as<Bits<F>>(a) == as<Bits<F>>(b); }
inline i32 raw_exponent(f32 x) { return i32(as<u32>(x) >> 23 & 255); }
inline i32 raw_exponent(f64 x) { return i32(as<u64>(x) >> 52 & 2047); }
template <class F> inline F divide_scale(F a, F b, F c, u32& m) {  // b: denominator, c: numerator
    m = 0;
    if (c == 0 || b == 0) return std::numeric_limits<F>::quiet_NaN();
    if (raw_exponent(c) - raw_exponent(b) >= Division<F>::FAR) { m = 1; return same(a, b) ? scaled(a, Division<F>::STEP) : a; }
    if (tiny(b)) return scaled(a, Division<F>::STEP);
    F inverse = F(1.0 / b), quotient = F(f64(c) / b);
    // The manual scales the denominator up here, but 1 over the largest number would then be NaN
    if (tiny(inverse) && tiny(quotient)) { m = 1; return same(a, b) ? scaled(a, -Division<F>::STEP) : a; }
    if (tiny(inverse)) return scaled(a, -Division<F>::STEP);
    if (tiny(quotient)) { m = 1; return same(a, c) ? scaled(a, Division<F>::STEP) : a; }
    if (raw_exponent(c) <= Division<F>::SMALL) return scaled(a, Division<F>::STEP);
    return a;
}
template <class F> inline F divide_fmas(F a, F b, F c, u32 vcc) {
    F r = std::fma(a, b, c);
    return vcc ? scaled(r, raw_exponent(c) > Division<F>::ONE ? Division<F>::STEP : -Division<F>::STEP) : r;
}
template <class F> inline F divide_fixup(F a, F b, F c) {
    const Bits<F> sign = (as<Bits<F>>(b) ^ as<Bits<F>>(c)) & Division<F>::SIGN, infinity = as<Bits<F>>(std::numeric_limits<F>::infinity());
    if (c != c || b != b) return as<F>(as<Bits<F>>(c != c ? c : b) | Division<F>::QUIET);
    if ((b == 0 && c == 0) || (std::isinf(b) && std::isinf(c))) return as<F>(Division<F>::SIGN | infinity | Division<F>::QUIET);
    if (b == 0 || std::isinf(c)) return as<F>(sign | infinity);
    if (std::isinf(b) || c == 0) return as<F>(sign);
    return as<F>(sign | (as<Bits<F>>(a) & ~Division<F>::SIGN));
}
template <class F> inline bool class_of(F a, u32 mask) {
    int which, kind = std::fpclassify(a); bool minus = std::signbit(a);
    if (kind == FP_NAN) {
        if constexpr (sizeof(F) == 4) which = as<u32>(a) >> 22 & 1; else which = as<u64>(a) >> 51 & 1;
    } else {
        int at = kind == FP_INFINITE ? 0 : kind == FP_NORMAL ? 1 : kind == FP_SUBNORMAL ? 2 : 3;
        which = minus ? 2 + at : 9 - at;
    }
    return mask >> which & 1;
}
inline bool class_of_half(u32 a, u32 mask) {
    const f32 value = half(a); const bool small = value != 0 && std::fabs(value) < 0x1p-14f;
    if (value != value) return mask >> (a >> 9 & 1) & 1;  // a conversion would make every NaN a quiet one
    return class_of(small ? std::copysign(0x1p-140f, value) : value, mask);
}
