// The machine: one wave's registers, operands, memory with faults, and the instructions that are
// no plain function of a lane's operands. Sections are those of the MI300 ISA manual.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

using u8 = uint8_t; using u16 = uint16_t; using u32 = uint32_t; using u64 = uint64_t;
using i16 = int16_t; using i32 = int32_t; using i64 = int64_t;
using f32 = float; using f64 = double;

constexpr int LANES = 64, EXEC = 126, VCC = 106, M0 = 124;
constexpr u32 POISON = 0xFFF7BAD5;  // NaN as f32, f64 and bf16, and no address
constexpr u64 ALL = ~0ull;

enum Kind : u8 { NONE, VECTOR, SCALAR, CONSTANT, BIT };
enum Modifier : u8 { NEGATIVE = 1, ABSOLUTE = 2, SIGNED = 4 };
enum Flag : u16 { DPP = 1, SDWA = 2, OUTPUT = 4, HALVES = 8, RETURNS = 16, OFFEN = 32, TO_LDS = 64 };

struct Operand { u8 kind, modifiers; u16 number; u32 low, high; };
struct Instruction { u16 operation, flags; i32 line; Operand o[6]; i32 aux[8]; };
struct Range { u64 first, size; };
struct Launch {
    const Instruction* code; u64 length; const Range* ranges; u64 range_count;
    u64 kernarg, kernarg_size, limit; u32 grid[3]; u32 threads, lds_bytes, scratch_bytes;
    u32 kernarg_sgpr, preload_sgprs, preload_offset, group_sgpr, group_ids, registers;
    u64 *counts, *lanes; u64 conflicts, lines64, lines128, bytes, stored;
    u64 touched64, lds_bytes_moved; u64* const* seen;  // per range, one bit for each 64 bytes
    u32 lds_unit, backwards, races_pass; u64 other;
};
struct Fault { char text[200]; };
template <class... T> [[noreturn]] void fail(const char* form, T... given) {
    Fault f; snprintf(f.text, sizeof f.text, form, given...); throw f;
}

template <class To, class From> inline To as(From x) { return __builtin_bit_cast(To, x); }
inline f32 half(u32 x) { return f32(as<_Float16>(u16(x))); }
inline u32 half_bits(f32 x) { return as<u16>(_Float16(x)); }
inline f32 f16_of(f64 x) { return f32(_Float16(x)); }
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
inline u32 leading_signs(i32 a) { u32 x = u32(a < 0 ? ~a : a); return x ? u32(__builtin_clz(x)) : ~0u; }
template <class F> inline i32 to_i32(F a) {
    return a != a ? 0 : a >= F(2147483648.0) ? 0x7fffffff : a <= F(-2147483648.0) ? i32(0x80000000) : i32(a);
}
template <class F> inline u32 to_u32(F a) { return !(a > 0) ? 0 : a >= F(4294967296.0) ? ~0u : u32(i64(a)); }
template <class F> inline F smaller(F a, F b) { return a != a ? b : b != b ? a : a < b ? a : b < a ? b : std::signbit(a) ? a : b; }
template <class F> inline F larger(F a, F b) { return a != a ? b : b != b ? a : a > b ? a : b > a ? b : std::signbit(a) ? b : a; }
inline f32 middle(f32 a, f32 b, f32 c) {
    if (a != a || b != b || c != c) return smaller(smaller(a, b), c);
    return larger(smaller(a, b), smaller(larger(a, b), c));
}
template <class T> inline T least(T a, T b) { return a < b ? a : b; }
template <class T> inline T most(T a, T b) { return a > b ? a : b; }
inline f32 fma_f32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
inline i32 low24(u32 x) { return i32(x << 8) >> 8; }
inline f64 power(i32 e) { return as<f64>(u64(1023 + e) << 52); }
inline f32 scaled(f32 a, i32 e) { return f32(f64(a) * power(e < -400 ? -400 : e > 400 ? 400 : e)); }
inline f32 sine(f32 a) { return f32(std::sin(6.283185307179586 * (a - std::floor(f64(a))))); }
inline f32 cosine(f32 a) { return f32(std::cos(6.283185307179586 * (a - std::floor(f64(a))))); }
inline f32 fraction(f32 a) { f32 r = a - floorf(a); return r < 1.0f ? r : 0x1.fffffep-1f; }
template <class F> inline i32 exponent_of(F a) { int e = 0; if (std::isfinite(a)) std::frexp(a, &e); return e; }
template <class F> inline F mantissa_of(F a) { int e; return std::isfinite(a) ? std::frexp(a, &e) : a; }
inline i32 field(i32 a, u32 at, u32 width) { return width ? i32(u32(a >> at) << (32 - width)) >> (32 - width) : 0; }
inline u64 bits_of(u64 a, u32 at, u32 width) { return a >> at & (width >= 64 ? ALL : (1ull << width) - 1); }
inline i64 signed_bits_of(u64 a, u32 at, u32 width) {
    return !width ? 0 : width >= 64 ? i64(a) >> at : i64((a >> at) << (64 - width)) >> (64 - width);
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
inline i32 dot4(u32 a, u32 b) { i32 r = 0; for (int i = 0; i < 32; i += 8) r += i32(int8_t(a >> i)) * int8_t(b >> i); return r; }
inline u32 three_bits(u32 a, u32 b, u32 c, u32 table) {
    u32 r = 0;
    for (int i = 0; i < 8; i++) if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}
inline bool tiny(f32 x) { return x != 0 && std::fabs(x) < 0x1p-126f; }
inline i32 raw_exponent(f32 x) { return i32(as<u32>(x) >> 23 & 255); }
inline f32 divide_scale(f32 a, f32 b, f32 c, u32& m) {  // b: denominator, c: numerator
    m = 0;
    if (c == 0 || b == 0) return std::numeric_limits<f32>::quiet_NaN();
    if (raw_exponent(c) - raw_exponent(b) >= 96) { m = 1; return as<u32>(a) == as<u32>(b) ? scaled(a, 64) : a; }
    if (tiny(b)) return scaled(a, 64);
    f32 inverse = f32(1.0 / b), quotient = f32(f64(c) / b);
    if (tiny(inverse) && tiny(quotient)) { m = 1; return as<u32>(a) == as<u32>(b) ? scaled(a, 64) : a; }
    if (tiny(inverse)) return scaled(a, -64);
    if (tiny(quotient)) { m = 1; return as<u32>(a) == as<u32>(c) ? scaled(a, 64) : a; }
    if (raw_exponent(c) <= 23) return scaled(a, 64);
    return a;
}
inline f32 divide_fmas(f32 a, f32 b, f32 c, u32 vcc) {
    f32 r = fma_f32(a, b, c);
    return vcc ? scaled(r, raw_exponent(c) > 127 ? 64 : -64) : r;
}
inline f32 divide_fixup(f32 a, f32 b, f32 c) {
    u32 sign = (as<u32>(b) ^ as<u32>(c)) & 0x80000000;
    if (c != c || b != b) return as<f32>(as<u32>(c != c ? c : b) | 0x400000);
    if ((b == 0 && c == 0) || (std::isinf(b) && std::isinf(c))) return as<f32>(0xffc00000u);
    if (b == 0 || std::isinf(c)) return as<f32>(sign | 0x7f800000);
    if (std::isinf(b) || c == 0) return as<f32>(sign);
    return as<f32>(sign | (as<u32>(a) & 0x7fffffff));
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
inline bool class_of_half(f32 a, u32 mask) {
    bool small = a != 0 && std::fabs(a) < 0x1p-14f;
    return class_of(small ? std::copysign(0x1p-140f, a) : a, mask);
}

// Who touched a unit of LDS since the last barrier: bit n stands for wave n
struct Touched { u32 epoch; u16 wrote, read; u32 writer, reader; };
struct Machine {
    Launch& launch; std::vector<u8> lds; const Range* last = nullptr;
    u32 epoch = 0, wave = 0, unit; bool alone; u64 pc = 0; std::vector<Touched> touched;
    explicit Machine(Launch& l)
        : launch(l), lds(l.lds_bytes), unit(l.lds_unit), alone(l.threads <= LANES || l.races_pass), touched(alone ? 0 : l.lds_bytes / unit + 1) {}

    u8* memory(u64 address, u32 size) {
        if (last && address - last->first < last->size && address - last->first + size <= last->size) return (u8*)address;
        const Range* end = launch.ranges + launch.range_count;
        const Range* found = std::upper_bound(launch.ranges, end, address, [](u64 a, const Range& r) { return a < r.first; });
        if (found == launch.ranges || address - found[-1].first + size > found[-1].size) {
            u64 past = found == launch.ranges ? ALL : address + size - found[-1].first - found[-1].size;
            if (past < 1 << 20)
                fail("an access of %u bytes ends %llu bytes past the end of a tensor", size, (unsigned long long)past);
            fail("an access of %u bytes lies in no tensor", size);
        }
        last = found - 1;
        return (u8*)address;
    }
    // Counts each 64 bytes of the tensors once, however often they are read and written.
    void touch(u64 line) {
        auto holds = [&](const Range* r) { return line >= r->first >> 6 && line <= (r->first + r->size - 1) >> 6; };
        if (!last || !holds(last)) {
            const Range* end = launch.ranges + launch.range_count;
            const Range* found = std::upper_bound(launch.ranges, end, line << 6 | 63, [](u64 a, const Range& r) { return a < r.first; });
            if (found == launch.ranges || !holds(found - 1)) return;  // the access itself will fail
            last = found - 1;
        }
        const u64 bit = line - (last->first >> 6); u64& word = launch.seen[last - launch.ranges][bit / 64];
        launch.touched64 += !(word >> (bit & 63) & 1); word |= 1ull << (bit & 63);
    }
    u8* shared(u64 address, u32 size) {
        if (address + size > lds.size()) fail("an access of %u bytes at %llu is outside the %llu bytes of LDS", size, (unsigned long long)address, (unsigned long long)lds.size());
        return lds.data() + address;
    }
    // Waves meet at barriers only. Between two of them, what one wave writes no other may read or change.
    [[noreturn]] void race(u64 at, const char* did, const char* had, u32 waves, u32 place) {
        launch.other = u64(place) + 1;
        fail("a race in LDS: wave %u %s at %llu what wave %d %s since the last barrier", wave, did, (unsigned long long)at, __builtin_ctz(waves), had);
    }
    Touched& since_barrier(u64 address) {
        Touched& t = touched[address / unit];
        if (t.epoch != epoch) t = {epoch, 0, 0, 0, 0};
        return t;
    }
    void read_shared(u64 address, void* to, u32 size) {
        memcpy(to, shared(address, size), size);
        if (alone) return;
        const u16 me = u16(1 << wave);
        for (u64 at = address; at < address + size; at += unit) {
            Touched& t = since_barrier(at);
            if (t.wrote && !(t.wrote & me)) race(at, "reads", "wrote", t.wrote, t.writer);
            t.read |= me; t.reader = u32(pc);
        }
    }
    // The same value written again is no change: waves that hold copies of a value may all store it.
    void write_shared(u64 address, const void* from, u32 size) {
        u8* to = shared(address, size);
        if (!alone) {
            const u16 me = u16(1 << wave);
            for (u32 i = 0; i < size; i += unit) {
                Touched& t = since_barrier(address + i);
                if (memcmp(to + i, (const u8*)from + i, least(unit, size - i))) {
                    if (t.wrote & ~me) race(address + i, "changes", "wrote", t.wrote & ~me, t.writer);
                    if (t.read & ~me) race(address + i, "changes", "read", t.read & ~me, t.reader);
                } else if (!t.wrote) continue;
                t.wrote |= me; t.writer = u32(pc);
            }
        }
        memcpy(to, from, size);
    }
};

struct alignas(64) Wave {
    u32 v[512][LANES]; u32 s[128]; u32 scc = 0; u64 pc = 0; u64 base; bool ended = false; bool waits = false;
    Machine* m; Launch* launch; std::vector<u8> scratch;
    u64 pair(int n) const { u64 x; memcpy(&x, s + n, 8); return x; }
    void set_pair(int n, u64 x) { memcpy(s + n, &x, 8); }
    u64 exec() const { return pair(EXEC); }
};
using W = Wave; using In = Instruction;

// ---- operands ----
inline u64 scalar64(const W& w, const Operand& o) {
    if (o.kind == SCALAR) return w.pair(o.number);
    if (o.kind == CONSTANT) return u64(o.high) << 32 | o.low;
    if (o.kind == BIT) return o.number == 0 ? w.scc : o.number == 1 ? w.pair(VCC) == 0 : w.exec() == 0;
    fail("a scalar operand is missing");
}
inline u32 scalar32(const W& w, const Operand& o) { return o.kind == SCALAR ? w.s[o.number] : u32(scalar64(w, o)); }
inline u32 picked(u32 x, int selection, bool is_signed) {  // SDWA: bytes 0-3, words 4-5, 6 for all
    if (selection == 6) return x;
    u32 part = selection < 4 ? x >> 8 * selection & 255 : x >> 16 * (selection - 4) & 0xffff;
    return !is_signed ? part : selection < 4 ? u32(i32(int8_t(part))) : u32(i32(i16(part)));
}
// `sign`: the bit that negation turns, 31 or 15
inline const u32* vector32(const W& w, const In& in, int k, u32* t, int sign, const u32* moved = nullptr) {
    const Operand& o = in.o[k];
    const u32* p = moved;
    if (!p && o.kind == VECTOR) p = w.v[o.number];
    else if (!p) { u32 x = scalar32(w, o); for (int l = 0; l < LANES; l++) t[l] = x; p = t; }
    if (!o.modifiers && !(in.flags & (SDWA | HALVES))) return p;
    if (in.flags & SDWA && k <= 2) {
        int selection = in.aux[3] >> 4 * (k - 1) & 15;
        for (int l = 0; l < LANES; l++) t[l] = picked(p[l], selection, o.modifiers & SIGNED);
        p = t;
    }
    u32 shift = in.flags & HALVES && (in.aux[2] >> (k - 1) & 1) ? 16 : 0;
    u32 keep = o.modifiers & ABSOLUTE ? ~(1u << sign) : ~0u, turn = o.modifiers & NEGATIVE ? 1u << sign : 0;
    for (int l = 0; l < LANES; l++) t[l] = ((p[l] >> shift) & keep) ^ turn;
    return t;
}
inline const u32* whole(const W& w, const Operand& o, u32* t) {
    if (o.kind == VECTOR) return w.v[o.number];
    const u32 x = scalar32(w, o);
    for (int l = 0; l < LANES; l++) t[l] = x;
    return t;
}
inline const u64* vector64(const W& w, const In& in, int k, u64* t) {
    const Operand& o = in.o[k];
    if (o.kind == VECTOR) { const u32 *low = w.v[o.number], *high = w.v[o.number + 1]; for (int l = 0; l < LANES; l++) t[l] = u64(high[l]) << 32 | low[l]; }
    else { u64 x = scalar64(w, o); for (int l = 0; l < LANES; l++) t[l] = x; }
    u64 keep = o.modifiers & ABSOLUTE ? ALL >> 1 : ALL, turn = o.modifiers & NEGATIVE ? 1ull << 63 : 0;
    if (o.modifiers) for (int l = 0; l < LANES; l++) t[l] = (t[l] & keep) ^ turn;
    return t;
}
// "Data Parallel Processing": the lane that each lane reads; -1 where there is none
inline int dpp_source(int control, int l) {
    int row = l & ~15, at = l & 15, n = control & 15;
    if (control < 0x100) return (l & ~3) | (control >> 2 * (l & 3) & 3);
    if (control < 0x110) return at + n < 16 ? row + at + n : -1;
    if (control < 0x120) return at - n >= 0 ? row + at - n : -1;
    if (control < 0x130) return row + ((at - n) & 15);
    switch (control) {
        case 0x130: return l + 1 < 64 ? l + 1 : -1;
        case 0x134: return (l + 1) & 63;
        case 0x138: return l - 1;
        case 0x13c: return (l - 1) & 63;
        case 0x140: return row + 15 - at;
        case 0x141: return (l & ~7) + 7 - (l & 7);
        case 0x142: return l >= 16 ? row - 1 : -1;
        case 0x143: return l >= 32 ? 31 : -1;
    }
    return row + n;  // row_newbcast
}
inline u64 move_lanes(const W& w, const In& in, const u32* from, u32* t, u64 mask) {
    int rows = in.aux[1] & 15, banks = in.aux[1] >> 4 & 15; bool zero = in.aux[1] >> 8 & 1; u64 exec = w.exec(), kept = 0;
    for (int l = 0; l < LANES; l++) {
        int source = dpp_source(in.aux[0], l);
        bool valid = source >= 0 && (exec >> source & 1);
        t[l] = valid ? from[source] : 0;
        bool on = (rows >> (l >> 4) & 1) && (banks >> (l >> 2 & 3) & 1) && (valid || zero);
        kept |= u64(on) << l;
    }
    return mask & kept;
}
inline void finish(const In& in, u32* d, u32* out, bool is_float) {
    if (in.flags & OUTPUT && is_float) {
        f32 factor = in.aux[4] >> 1 == 1 ? 2 : in.aux[4] >> 1 == 2 ? 4 : in.aux[4] >> 1 == 3 ? 0.5f : 1; bool clamp = in.aux[4] & 1;
        for (int l = 0; l < LANES; l++) { f32 x = as<f32>(out[l]) * factor; if (clamp) x = x > 0 ? (x < 1 ? x : 1) : 0; out[l] = as<u32>(x); }
    }
    if (in.flags & SDWA) {
        int selection = in.aux[3] >> 8 & 15, unused = in.aux[3] >> 12;  // 0 zero, 1 sign, 2 kept
        if (selection == 6) return;
        int at = selection < 4 ? 8 * selection : 16 * (selection - 4), width = selection < 4 ? 8 : 16;
        u32 mask = ((1u << width) - 1) << at;
        for (int l = 0; l < LANES; l++) {
            u32 x = out[l] << at & mask, rest = unused == 2 ? d[l] & ~mask : 0;
            if (unused == 1 && x >> (at + width - 1) & 1) rest = ~((1ull << (at + width)) - 1);
            out[l] = x | rest;
        }
    }
    if (in.flags & HALVES && in.aux[2] >> 3 & 1) for (int l = 0; l < LANES; l++) out[l] = out[l] << 16 | (d[l] & 0xffff);
}
inline void commit(u32* d, const u32* out, u64 mask) {
    if (mask == ALL) { memcpy(d, out, 4 * LANES); return; }
    for (int l = 0; l < LANES; l++) d[l] = mask >> l & 1 ? out[l] : d[l];
}
inline u64 packed_bits(const u8* b) {
    u64 r = 0;
    for (int i = 0; i < 8; i++) { u64 x; memcpy(&x, b + 8 * i, 8); r |= (x * 0x0102040810204080ull >> 56) << 8 * i; }
    return r;
}

// ---- lanes: readlane and its kin, permutations of LDS hardware ----
inline int first_lane(u64 mask) { return mask ? __builtin_ctzll(mask) : 0; }
inline void v_readfirstlane_b32(W& w, const In& in) {
    const Operand& o = in.o[1];
    w.s[in.o[0].number] = o.kind == VECTOR ? w.v[o.number][first_lane(w.exec())] : scalar32(w, o);
}
inline void v_readlane_b32(W& w, const In& in) { w.s[in.o[0].number] = w.v[in.o[1].number][scalar32(w, in.o[2]) & 63]; }
inline void v_writelane_b32(W& w, const In& in) { w.v[in.o[0].number][scalar32(w, in.o[2]) & 63] = scalar32(w, in.o[1]); }
inline void v_swap_b32(W& w, const In& in) {
    u32 *a = w.v[in.o[0].number], *b = w.v[in.o[1].number]; u64 mask = w.exec();
    for (int l = 0; l < LANES; l++) if (mask >> l & 1) std::swap(a[l], b[l]);
}
inline void swap_rows(W& w, const In& in, int size) {
    u32 *a = w.v[in.o[0].number], *b = w.v[in.o[1].number];
    for (int l = 0; l < LANES; l++) if (l & size) std::swap(a[l], b[l - size]);
}
inline void v_permlane16_swap_b32(W& w, const In& in) { swap_rows(w, in, 16); }
inline void v_permlane32_swap_b32(W& w, const In& in) { swap_rows(w, in, 32); }
inline void v_fma_mix(W& w, const In& in, int form) {  // form 0: f32, 1: low half, 2: high half
    u32* d = w.v[in.o[0].number]; u64 mask = w.exec();
    u32 t[3][LANES], out[LANES]; const u32* p[3];
    for (int k = 0; k < 3; k++) { const Operand& o = in.o[k + 1]; if (o.kind == VECTOR) p[k] = w.v[o.number]; else { u32 x = scalar32(w, o); for (int l = 0; l < LANES; l++) t[k][l] = x; p[k] = t[k]; } }
    int sel = in.aux[2] & 255, high = in.aux[2] >> 8 & 255, neg = in.aux[2] >> 16 & 255, abs = u32(in.aux[2]) >> 24;
    for (int l = 0; l < LANES; l++) {
        f32 x[3];
        for (int k = 0; k < 3; k++) {
            x[k] = high >> k & 1 ? half(sel >> k & 1 ? p[k][l] >> 16 : p[k][l]) : as<f32>(p[k][l]);
            if (abs >> k & 1) x[k] = std::fabs(x[k]);
            if (neg >> k & 1) x[k] = -x[k];
        }
        f32 r = form ? f16_of(f64(x[0]) * x[1] + x[2]) : fma_f32(x[0], x[1], x[2]);
        out[l] = form == 0 ? as<u32>(r) : form == 1 ? half_bits(r) | (d[l] & 0xffff0000) : half_bits(r) << 16 | (d[l] & 0xffff);
    }
    commit(d, out, mask);
}
inline void v_fma_mix_f32(W& w, const In& in) { v_fma_mix(w, in, 0); }
inline void v_fma_mixlo_f16(W& w, const In& in) { v_fma_mix(w, in, 1); }
inline void v_fma_mixhi_f16(W& w, const In& in) { v_fma_mix(w, in, 2); }
inline void v_pk_mov_b32(W& w, const In& in) {
    u64 a[LANES], b[LANES]; vector64(w, in, 1, a); vector64(w, in, 2, b);
    u32 low[LANES], high[LANES]; int sel = in.aux[2];
    for (int l = 0; l < LANES; l++) { low[l] = u32(a[l] >> (sel & 1 ? 32 : 0)); high[l] = u32(b[l] >> (sel & 2 ? 32 : 0)); }
    commit(w.v[in.o[0].number], low, w.exec()); commit(w.v[in.o[0].number + 1], high, w.exec());
}
inline void ds_bpermute_b32(W& w, const In& in) {
    const u32 *at = w.v[in.o[1].number], *from = w.v[in.o[2].number]; u64 mask = w.exec(); u32 out[LANES];
    for (int l = 0; l < LANES; l++) { int source = (at[l] + in.aux[0]) >> 2 & 63; out[l] = mask >> source & 1 ? from[source] : 0; }
    commit(w.v[in.o[0].number], out, mask);
}
inline void ds_permute_b32(W& w, const In& in) {
    const u32 *at = w.v[in.o[1].number], *from = w.v[in.o[2].number]; u64 mask = w.exec(); u32 out[LANES] = {};
    for (int l = 0; l < LANES; l++) if (mask >> l & 1) out[(at[l] + in.aux[0]) >> 2 & 63] = from[l];
    commit(w.v[in.o[0].number], out, mask);
}
inline void ds_swizzle_b32(W& w, const In& in) {
    const u32* from = w.v[in.o[1].number]; u64 mask = w.exec(); u32 out[LANES], c = in.aux[0];
    for (int l = 0; l < LANES; l++) {
        int source = c >> 15 ? (l & ~3) | (c >> 2 * (l & 3) & 3) : (l & 32) | ((((l & 31) & c) | (c >> 5 & 31)) ^ (c >> 10 & 31));
        out[l] = mask >> source & 1 ? from[source] : 0;
    }
    commit(w.v[in.o[0].number], out, mask);
}

// ---- memory ---- aux: 0 offset, 1 second offset, 2 bytes, 3 form (0 plain, 1 signed, 2 low half, 3 high half), 5 atomic
inline u64 scalar_offset(const W& w, const Operand& o) { return o.kind == NONE ? 0 : scalar32(w, o); }
inline void s_load(W& w, const In& in) {
    u64 base = w.pair(in.o[1].number) + scalar_offset(w, in.o[2]) + i64(in.aux[0]);
    memcpy(w.s + in.o[0].number, w.m->memory(base & ~3ull, in.aux[2]), in.aux[2]);
}
inline void s_buffer_load(W& w, const In& in) {
    const u32* r = w.s + in.o[1].number; u64 base = r[0] | u64(r[1] & 0xffff) << 32;
    u64 at = scalar_offset(w, in.o[2]) + in.aux[0];
    for (int i = 0; i < in.aux[2]; i += 4) { u32 x = 0; if (at + i + 4 <= r[2]) memcpy(&x, w.m->memory(base + at + i, 4), 4); w.s[in.o[0].number + i / 4] = x; }
}
enum Space { BUFFER, GLOBAL, SCRATCH, LDS };
// The lanes' addresses; 0 for one whose access is dropped. o: 0 data or result, 1 address, 2 descriptor or base, 3 soffset
template <Space S> inline u64 addresses(W& w, const In& in, u64* at, u32 size, int a = 1) {
    u64 mask = w.exec(); const Operand &o = in.o[a], &b = in.o[a + 1];
    if constexpr (S == BUFFER) {
        const u32* r = w.s + b.number; u64 base = r[0] | u64(r[1] & 0xffff) << 32, soffset = scalar32(w, in.o[a + 2]);
        if (r[1] >> 16 & 0x3fff) fail("a buffer with a stride is not emulated");
        const u32* v = in.flags & OFFEN ? w.v[o.number] : nullptr; u64 kept = mask;
        for (int l = 0; l < LANES; l++) {
            u64 offset = u64(v ? v[l] : 0) + u32(in.aux[0]);
            at[l] = base + offset + soffset;
            if (offset + size > u64(r[2]) - least(soffset, u64(r[2]))) kept &= ~(1ull << l);
        }
        return kept;
    } else if constexpr (S == GLOBAL) {
        if (b.kind == SCALAR) { u64 base = w.pair(b.number) + i64(in.aux[0]); for (int l = 0; l < LANES; l++) at[l] = base + w.v[o.number][l]; }
        else for (int l = 0; l < LANES; l++) at[l] = (u64(w.v[o.number + 1][l]) << 32 | w.v[o.number][l]) + i64(in.aux[0]);
    } else if constexpr (S == SCRATCH) {
        u64 base = i64(in.aux[0]) + (b.kind == SCALAR ? w.s[b.number] : 0);
        for (int l = 0; l < LANES; l++) at[l] = base + (o.kind == VECTOR ? w.v[o.number][l] : 0);
    } else for (int l = 0; l < LANES; l++) at[l] = u64(w.v[o.number][l]) + u32(in.aux[0]);
    return mask;
}
template <Space S> inline u8* place(W& w, u64 address, u32 size, int lane) {
    if constexpr (S == LDS) return w.m->shared(address, size);
    if constexpr (S == SCRATCH) {
        u64 own = w.launch->scratch_bytes;
        if (address + size > own) fail("an access of %u bytes at %llu is outside a lane's %llu bytes of scratch", size, (unsigned long long)address, (unsigned long long)own);
        return w.scratch.data() + own * lane + address;
    }
    return w.m->memory(address, size);
}
template <Space S> inline void read_at(W& w, u64 address, void* to, u32 size, int lane) {
    if constexpr (S == LDS) w.m->read_shared(address, to, size);
    else memcpy(to, place<S>(w, address, size, lane), size);
}
template <Space S> inline void write_at(W& w, u64 address, const void* from, u32 size, int lane) {
    if constexpr (S == LDS) w.m->write_shared(address, from, size);
    else memcpy(place<S>(w, address, size, lane), from, size);
}
inline u64 distinct(u64* values, int count) { std::sort(values, values + count); return std::unique(values, values + count) - values; }
// Bank conflicts: cycles beyond the first, over groups of lanes that the LDS serves together; 32 banks of 4 bytes
inline u64 bank_conflicts(const u64* at, u64 mask, u32 size) {
    int group = size <= 4 ? 32 : size == 8 ? 32 : 16; u64 extra = 0;
    if (size > 8) group = 8; else if (size > 4) group = 16;
    for (int start = 0; start < LANES; start += group) {
        u64 words[32][8]; int used[32] = {}; int worst = 0;
        for (int l = start; l < start + group; l++) {
            if (!(mask >> l & 1)) continue;
            for (u32 part = 0; part < (size + 3) / 4; part++) {
                u64 word = at[l] / 4 + part; int bank = word & 31; bool seen = false;
                for (int i = 0; i < used[bank] && i < 8; i++) seen |= words[bank][i] == word;
                if (!seen) { if (used[bank] < 8) words[bank][used[bank]] = word; worst = most(worst, ++used[bank]); }
            }
        }
        if (worst > 1) extra += worst - 1;
    }
    return extra;
}
template <Space S> inline void count_access(W& w, const In& in, const u64* at, u64 mask, u32 size) {
    Launch& c = *w.launch;
    if constexpr (S == LDS) { c.conflicts += bank_conflicts(at, mask, size); c.lds_bytes_moved += u64(__builtin_popcountll(mask)) * size; return; }
    if constexpr (S == SCRATCH) return;
    u64 near[2 * LANES], far[2 * LANES]; int n = 0;
    for (int l = 0; l < LANES; l++) if (mask >> l & 1) { near[n] = at[l] >> 6; far[n++] = at[l] >> 7; near[n] = (at[l] + size - 1) >> 6; far[n++] = (at[l] + size - 1) >> 7; }
    c.bytes += u64(__builtin_popcountll(mask)) * size; c.lines128 += distinct(far, n);
    const u64 lines = distinct(near, n); c.lines64 += lines;
    for (u64 i = 0; i < lines; i++) w.m->touch(near[i]);
}
template <Space S> void load(W& w, const In& in) {
    u64 at[LANES]; u32 size = in.aux[2]; u64 exec = w.exec(), mask = addresses<S>(w, in, at, size); int form = in.aux[3];
    count_access<S>(w, in, at, mask, size);
    u32 out[4][LANES] = {}; int registers = (size + 3) / 4;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        u32 x[4] = {}; read_at<S>(w, at[l], x, size, l);
        if (form & 1 && form != 3) x[0] = size == 1 ? u32(i32(int8_t(x[0]))) : u32(i32(i16(x[0])));
        for (int i = 0; i < registers; i++) out[i][l] = x[i];
    }
    if (in.flags & TO_LDS) {
        for (int l = 0; l < LANES; l++) if (exec >> l & 1) { u32 x[4]; for (int i = 0; i < 4; i++) x[i] = out[i][l]; w.m->write_shared(u64(w.s[M0]) + u32(in.aux[0]) + u64(l) * size, x, size); }
        return;
    }
    u32* d = w.v[in.o[0].number];
    if (form >= 2) for (int l = 0; l < LANES; l++) out[0][l] = form == 2 ? (out[0][l] & 0xffff) | (d[l] & 0xffff0000) : out[0][l] << 16 | (d[l] & 0xffff);
    for (int i = 0; i < registers; i++) commit(w.v[in.o[0].number + i], out[i], exec);
}
template <Space S> void store(W& w, const In& in) {
    u64 at[LANES]; u32 size = in.aux[2]; const Operand& data = in.o[0]; u64 mask = addresses<S>(w, in, at, size);
    count_access<S>(w, in, at, mask, size);
    if (S == BUFFER || S == GLOBAL) w.launch->stored += u64(__builtin_popcountll(mask)) * size;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        u32 x[4]; for (u32 i = 0; i < (size + 3) / 4; i++) x[i] = w.v[data.number + i][l];
        if (in.aux[3] == 3) x[0] >>= 16;
        write_at<S>(w, at[l], x, size, l);
    }
}
void ds_read2(W& w, const In& in) {
    u64 at[LANES], mask = w.exec(); u32 size = in.aux[2]; int each = size / 4; u32 out[4][LANES] = {};
    for (int part = 0; part < 2; part++) {
        for (int l = 0; l < LANES; l++) at[l] = u64(w.v[in.o[1].number][l]) + u32(in.aux[part]);
        count_access<LDS>(w, in, at, mask, size);
        for (int l = 0; l < LANES; l++) if (mask >> l & 1) { u32 x[2]; w.m->read_shared(at[l], x, size); for (int i = 0; i < each; i++) out[part * each + i][l] = x[i]; }
    }
    for (int i = 0; i < 2 * each; i++) commit(w.v[in.o[0].number + i], out[i], mask);
}
void ds_write2(W& w, const In& in) {
    u64 at[LANES], mask = w.exec(); u32 size = in.aux[2];
    for (int part = 0; part < 2; part++) {
        for (int l = 0; l < LANES; l++) at[l] = u64(w.v[in.o[0].number][l]) + u32(in.aux[part]);
        count_access<LDS>(w, in, at, mask, size);
        for (int l = 0; l < LANES; l++) if (mask >> l & 1) { u32 x[2]; for (u32 i = 0; i < size / 4; i++) x[i] = w.v[in.o[1 + part].number + i][l]; w.m->write_shared(at[l], x, size); }
    }
}
// ds_read_b64_tr_b16 (CDNA 4): in each 16 lanes, lane i's four halves are column i of what the lanes' addresses hold
void ds_read_b64_tr_b16(W& w, const In& in) {
    u64 at[LANES], mask = addresses<LDS>(w, in, at, 8); u16 x[LANES][4]; u32 low[LANES], high[LANES];
    if (mask != ALL) fail("ds_read_b64_tr_b16 with lanes off is not emulated");
    count_access<LDS>(w, in, at, mask, 8);
    for (int l = 0; l < LANES; l++) w.m->read_shared(at[l], x[l], 8);
    for (int l = 0; l < LANES; l++) {
        int row = l & ~15, i = l & 15; u16 y[4];
        for (int k = 0; k < 4; k++) y[k] = x[row + 4 * k + i / 4][i & 3];
        low[l] = y[0] | u32(y[1]) << 16; high[l] = y[2] | u32(y[3]) << 16;
    }
    commit(w.v[in.o[0].number], low, mask); commit(w.v[in.o[0].number + 1], high, mask);
}
enum Atomic { SWAP, CMPSWAP, ADD, SUB, SMIN, UMIN, SMAX, UMAX, AND, OR, XOR, INC, DEC, ADD_F32, ADD_F64, MIN_F64, MAX_F64, PK_ADD_F16, PK_ADD_BF16, MIN_F32, MAX_F32 };
template <class U, class I> U changed(int what, U old, U x, U compare) {
    switch (what) {
        case SWAP: return x; case CMPSWAP: return old == compare ? x : old; case ADD: return old + x; case SUB: return old - x;
        case SMIN: return U(least(I(old), I(x))); case UMIN: return least(old, x); case SMAX: return U(most(I(old), I(x))); case UMAX: return most(old, x);
        case AND: return old & x; case OR: return old | x; case XOR: return old ^ x; case INC: return old >= x ? 0 : old + 1; case DEC: return old == 0 || old > x ? x : old - 1;
    }
    if constexpr (sizeof(U) == 4) switch (what) {
        case ADD_F32: return as<u32>(as<f32>(old) + as<f32>(x)); case MIN_F32: return as<u32>(smaller(as<f32>(old), as<f32>(x))); case MAX_F32: return as<u32>(larger(as<f32>(old), as<f32>(x)));
        case PK_ADD_F16: return half_bits(half(old) + half(x)) | half_bits(half(old >> 16) + half(x >> 16)) << 16;
        case PK_ADD_BF16: return bf16_of(as<f32>(old << 16) + as<f32>(x << 16)) | bf16_of(as<f32>(old & 0xffff0000) + as<f32>(x & 0xffff0000)) << 16;
    } else switch (what) {
        case ADD_F64: return as<u64>(as<f64>(old) + as<f64>(x)); case MIN_F64: return as<u64>(smaller(as<f64>(old), as<f64>(x))); case MAX_F64: return as<u64>(larger(as<f64>(old), as<f64>(x)));
    }
    fail("an atomic operation is not emulated at this width");
}
// o: 0 result or none, 1 address, 2 base or descriptor, 3 soffset, 4 data, 5 what is compared with (LDS)
template <Space S> void atomic(W& w, const In& in) {
    u64 at[LANES]; u32 size = in.aux[2]; u64 exec = w.exec(), mask = addresses<S>(w, in, at, size); int what = in.aux[5];
    count_access<S>(w, in, at, mask, size);
    if (S != LDS) w.launch->stored += u64(__builtin_popcountll(mask)) * size;
    u32 out[2][LANES] = {}; int data = in.o[4].number, each = size / 4;
    auto value = [&](int r, int l) { u64 x = w.v[r][l]; return size == 8 ? x | u64(w.v[r + 1][l]) << 32 : x; };
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        u8* p = place<S>(w, at[l], size, l);
        u64 old = 0, x = value(data, l), compare = 0; memcpy(&old, p, size);
        if (what == CMPSWAP) { if (S == LDS) { compare = x; x = value(in.o[5].number, l); } else compare = value(data + each, l); }
        u64 fresh = size == 4 ? u64(changed<u32, i32>(what, u32(old), u32(x), u32(compare))) : changed<u64, i64>(what, old, x, compare);
        memcpy(p, &fresh, size); out[0][l] = u32(old); out[1][l] = u32(old >> 32);
    }
    if (in.flags & RETURNS) for (int i = 0; i < each; i++) commit(w.v[in.o[0].number + i], out[i], exec);
}

// ---- matrix: "Matrix Arithmetic Instructions" ---- aux: 0 m (16 or 32), 1 k, 2 type of A, 3 type of B, 4 integer
enum Number { BF16, F16, F32, I8, FP8, BF8, FP8_OCP, BF8_OCP };
inline f32 small_float(u32 x, int mantissa, bool ocp) {  // FNUZ: bias one more, one NaN, no infinities; OCP: as IEEE, but E4M3
    int bias = (mantissa == 3 ? 7 : 15) + !ocp, e = x >> mantissa & ((1 << (7 - mantissa)) - 1), f = x & ((1 << mantissa) - 1); f32 sign = x & 128 ? -1 : 1;
    if (!ocp && x == 128) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 3 && (x & 127) == 127) return std::numeric_limits<f32>::quiet_NaN();
    if (ocp && mantissa == 2 && e == 31) return f ? std::numeric_limits<f32>::quiet_NaN() : sign * std::numeric_limits<f32>::infinity();
    return sign * std::ldexp(f32(e ? f + (1 << mantissa) : f), (e ? e : 1) - bias - mantissa);
}
inline f32 element(const W& w, int number, int type, int j, int l) {
    switch (type) {
        case F32: return as<f32>(w.v[number + j][l]);
        case BF16: return as<f32>(w.v[number + j / 2][l] >> 16 * (j & 1) << 16);
        case F16: return half(w.v[number + j / 2][l] >> 16 * (j & 1));
    }
    u32 byte = w.v[number + j / 4][l] >> 8 * (j & 3) & 255;
    switch (type) { case I8: return f32(int8_t(byte)); case FP8: return small_float(byte, 3, false); case BF8: return small_float(byte, 2, false); case FP8_OCP: return small_float(byte, 3, true); }
    return small_float(byte, 2, true);
}
template <class T, int N> void multiply(W& w, const In& in) {
    constexpr int GROUPS = LANES / N, REGISTERS = N * N / LANES;
    int K = in.aux[1], each = K / GROUPS;
    static thread_local T a[32 * 128], b[128 * 32];
    for (int l = 0; l < LANES; l++) for (int j = 0; j < each; j++) {
        int k = l / N * each + j;
        a[(l % N) * K + k] = T(element(w, in.o[1].number, in.aux[2], j, l));
        b[k * N + l % N] = T(element(w, in.o[2].number, in.aux[3], j, l));
    }
    T sums[REGISTERS][LANES]; const Operand& c = in.o[3];
    for (int r = 0; r < REGISTERS; r++) for (int g = 0; g < GROUPS; g++) {
        T* sum = sums[r] + g * N; int row = r / 4 * 4 * GROUPS + g * 4 + r % 4;
        for (int j = 0; j < N; j++) sum[j] = as<T>(c.kind == VECTOR ? w.v[c.number + r][g * N + j] : c.low);
        for (int k = 0; k < K; k++) { T x = a[row * K + k]; for (int j = 0; j < N; j++) sum[j] += x * b[k * N + j]; }
    }
    for (int r = 0; r < REGISTERS; r++) memcpy(w.v[in.o[0].number + r], sums[r], 4 * LANES);
}
void mfma(W& w, const In& in) {
    if (in.aux[4]) { in.aux[0] == 32 ? multiply<i32, 32>(w, in) : multiply<i32, 16>(w, in); }
    else in.aux[0] == 32 ? multiply<f32, 32>(w, in) : multiply<f32, 16>(w, in);
}

// ---- flow ----
inline void jump(W& w, const In& in) { w.pc = u64(i64(in.aux[0])); }
inline void nothing(W&, const In&) {}
inline void s_branch(W& w, const In& in) { jump(w, in); }
inline void s_cbranch_scc0(W& w, const In& in) { if (!w.scc) jump(w, in); }
inline void s_cbranch_scc1(W& w, const In& in) { if (w.scc) jump(w, in); }
inline void s_cbranch_vccz(W& w, const In& in) { if (!w.pair(VCC)) jump(w, in); }
inline void s_cbranch_vccnz(W& w, const In& in) { if (w.pair(VCC)) jump(w, in); }
inline void s_cbranch_execz(W& w, const In& in) { if (!w.exec()) jump(w, in); }
inline void s_cbranch_execnz(W& w, const In& in) { if (w.exec()) jump(w, in); }
inline void s_endpgm(W& w, const In&) { w.ended = true; }
inline void s_barrier(W& w, const In&) { w.waits = true; }
inline void s_trap(W&, const In&) { fail("the kernel trapped: a device assertion failed"); }
