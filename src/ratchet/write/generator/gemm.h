//: gemm from_bf16
// C [M, N] = A [M, K] B [K, N], float32 sums; rows or columns are shared among a team. Blocks of B and
// A are packed to panels of GN columns and some rows. Where both are bf16 and the CPU multiplies pairs of
// them, a packed word is a pair along K; with AMX, words go to tiles of 16 by 16.
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) || defined(RATCHET_AMX_EMULATE)
#define R_TILES
#include "amx_tiles.h"
#endif
#if defined(__AVX512F__)
typedef float r_lane __attribute__((vector_size(64), aligned(4)));
enum { GM = 8, GN = 32 };
#else
typedef float r_lane __attribute__((vector_size(32), aligned(4)));
enum { GM = 6, GN = 16 };
#endif
// The schedule defines R_DEPTH, R_ROWS and R_COLUMNS, the sizes of blocks, R_DIRECT and R_DENORMALS.
#define R_METHOD inline __attribute__((always_inline))
enum { GL = sizeof(r_lane) / sizeof(float) };
typedef float r_eight __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint16_t r_halves __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t r_words __attribute__((vector_size(32)));
// A factor's element (i, k): i counts rows of A or columns of B, k runs along the inner size.
template <typename T> struct r_even {
    typedef T Item;
    static constexpr bool TABLES = false;
    const T* p;
    int64_t across, along;
    R_METHOD const T* at(int64_t i, int64_t k) const { return p + i * across + k * along; }
    R_METHOD r_even from(int64_t i, int64_t k) const { return {at(i, k), across, along}; }
    R_METHOD bool flat_across(int64_t, int64_t) const { return across == 1; }
    R_METHOD bool flat_along(int64_t, int64_t) const { return along == 1; }
};
// Tables of places, and how many follow each other from each on.
template <typename T> struct r_apart {
    typedef T Item;
    static constexpr bool TABLES = true;
    const T* p;
    const int64_t *across, *along, *across_runs, *along_runs;
    R_METHOD const T* at(int64_t i, int64_t k) const { return p + across[i] + along[k]; }
    R_METHOD r_apart from(int64_t i, int64_t k) const { return {p, across + i, along + k, across_runs + i, along_runs + k}; }
    R_METHOD bool flat_across(int64_t i, int64_t n) const { return across_runs[i] >= n; }
    R_METHOD bool flat_along(int64_t k, int64_t n) const { return along_runs[k] >= n; }
};
R_INLINE void r_runs(const int64_t* places, int64_t* runs, int64_t count) {
    for (int64_t i = count - 1; i >= 0; --i) runs[i] = i + 1 < count && places[i + 1] == places[i] + 1 ? runs[i + 1] + 1 : 1;
}
R_INLINE float r_item(float x) { return x; }
R_INLINE float r_item(uint16_t x) { return r_from_bf16(x); }
template <bool PAIRS, typename O> R_INLINE float r_word(const O& x, int64_t i, int64_t k, int64_t depth) {
    if constexpr (PAIRS) {
        const uint32_t low = *x.at(i, 2 * k), high = 2 * k + 1 < depth ? *x.at(i, 2 * k + 1) : 0;
        return r_float(low | high << 16);
    } else return r_item(*x.at(i, k));
}
R_INLINE r_eight r_widened(const uint16_t* x) { return (r_eight)(__builtin_convertvector(*(const r_halves*)x, r_words) << 16); }
// Eight words across.
template <bool PAIRS, typename O> R_INLINE r_eight r_across(const O& x, int64_t i, int64_t k, int64_t depth) {
    if constexpr (PAIRS) {
        r_words both = __builtin_convertvector(*(const r_halves*)x.at(i, 2 * k), r_words);
        if (2 * k + 1 < depth) both |= __builtin_convertvector(*(const r_halves*)x.at(i, 2 * k + 1), r_words) << 16;
        return (r_eight)both;
    } else if constexpr (sizeof(typename O::Item) == 2) return r_widened(x.at(i, k));
    else return *(const r_eight*)x.at(i, k);
}
// Eight words along.
template <bool PAIRS, typename O> R_INLINE r_eight r_along(const O& x, int64_t i, int64_t k) {
    if constexpr (PAIRS) return *(const r_eight*)x.at(i, 2 * k);
    else if constexpr (sizeof(typename O::Item) == 2) return r_widened(x.at(i, k));
    else return *(const r_eight*)x.at(i, k);
}
R_INLINE void r_turn(r_eight* v) {
    r_eight t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[2 * i + 1] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            u[h + 2 * i] = __builtin_shufflevector(t[h + i], t[h + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            u[h + 2 * i + 1] = __builtin_shufflevector(t[h + i], t[h + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        v[i] = __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
// Words of `depth` items; whole tiles of them with AMX.
template <bool PAIRS, bool TILES> R_INLINE int64_t r_words_of(int64_t depth) {
    const int64_t words = PAIRS ? (depth + 1) / 2 : depth;
    return TILES ? (words + 15) / 16 * 16 : words;
}
// A panel is [word][PANEL], or with TURNED [16 words][PANEL][16]. In one of 6, rows of eight reach into what
// is written next; the last one into spare memory.
template <bool PAIRS, bool TILES, bool TURNED, int PANEL, typename O>
static void r_pack(float* to, const O& from, int64_t count, int64_t depth) {
    const int64_t words = PAIRS ? (depth + 1) / 2 : depth, whole = PAIRS ? depth / 2 : depth;
    const int64_t room = r_words_of<PAIRS, TILES>(depth);
    for (int64_t first = 0; first < count; first += PANEL, to += PANEL * room) {
        const int64_t here = whole_min(PANEL, count - first);
        const O x = from.from(first, 0);
        if (here < PANEL || room > words) memset(to, 0, sizeof(float) * PANEL * room);
        if (!TURNED && here == PANEL && x.flat_across(0, PANEL)) {
            for (int64_t k = 0; k < words; ++k)
                for (int64_t i = 0; i < PANEL; ++i) {
                    if constexpr (PAIRS) {
                        const uint32_t low = x.at(0, 2 * k)[i], high = 2 * k + 1 < depth ? x.at(0, 2 * k + 1)[i] : 0;
                        to[k * PANEL + i] = r_float(low | high << 16);
                    } else to[k * PANEL + i] = r_item(x.at(0, k)[i]);
                }
            continue;
        }
        for (int64_t k = 0; k < words; k += 8)
            for (int64_t i = 0; i < here; i += 8) {
                const int64_t rows = whole_min(8, here - i), deep = whole_min(8, words - k);
                r_eight v[8];
                bool turned = false;
                if (deep == 8 && k + 8 <= whole && x.flat_along(PAIRS ? 2 * k : k, PAIRS ? 16 : 8)) {
#pragma GCC unroll 8
                    for (int r = 0; r < 8; ++r) v[r] = r_along<PAIRS>(x, whole_min(i + r, here - 1), k);
                    for (int64_t r = rows; r < 8; ++r) v[r] = r_eight{};
                    turned = true;
                } else if (rows == 8 && deep == 8 && x.flat_across(i, 8)) {
#pragma GCC unroll 8
                    for (int r = 0; r < 8; ++r) v[r] = r_across<PAIRS>(x, i, k + r, depth);
                } else {
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t n = k; n < k + deep; ++n)
                            to[TURNED ? n / 16 * 16 * PANEL + (i + r) * 16 + n % 16 : n * PANEL + i + r] = r_word<PAIRS>(x, i + r, n, depth);
                    continue;
                }
                if (turned != TURNED) r_turn(v);
#pragma GCC unroll 8
                for (int r = 0; r < 8; ++r)
                    if (TURNED) {
                        if (r < rows) *(r_eight*)(to + k / 16 * 16 * PANEL + (i + r) * 16 + k % 16) = v[r];
                    } else *(r_eight*)(to + (k + r) * PANEL + i) = v[r];
            }
    }
}
R_INLINE void r_added(const float* part, int64_t row, float* c, int64_t cr, int64_t cc, int64_t m, int64_t n, bool first) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float* to = c + i * cr + j * cc;
            *to = first ? part[i * row + j] : *to + part[i * row + j];
        }
}
// With STEPS, row k of B lies `steps[k]` after b; else `step` after the row before.
template <bool PAIRS, bool STEPS>
static inline void r_micro(const float* a, const float* b, int64_t step, const int64_t* steps, int64_t words, float* c, int64_t cr, int64_t cc, int64_t m, int64_t n, bool first) {
    r_lane s[GM][2];
#pragma GCC unroll 8
    for (int i = 0; i < GM; ++i) s[i][0] = s[i][1] = r_lane{};
    for (int64_t k = 0; k < words; ++k, a += GM) {
        const float* at = STEPS ? b + steps[k] : b + k * step;
        const r_lane u = *(const r_lane*)at, v = *(const r_lane*)(at + GL);
#pragma GCC unroll 8
        for (int i = 0; i < GM; ++i) {
#if defined(__AVX512BF16__)
            if constexpr (PAIRS) {
                const __m512bh w = (__m512bh)_mm512_set1_ps(a[i]);
                s[i][0] = (r_lane)_mm512_dpbf16_ps((__m512)s[i][0], w, (__m512bh)u);
                s[i][1] = (r_lane)_mm512_dpbf16_ps((__m512)s[i][1], w, (__m512bh)v);
                continue;
            }
#endif
            s[i][0] += a[i] * u;
            s[i][1] += a[i] * v;
        }
    }
    if (cc == 1 && n == GN) {
#pragma GCC unroll 8
        for (int i = 0; i < GM; ++i) {
            if (i >= m) return;
            r_lane* to = (r_lane*)(c + i * cr);
            to[0] = first ? s[i][0] : to[0] + s[i][0];
            to[1] = first ? s[i][1] : to[1] + s[i][1];
        }
        return;
    }
    float part[GM][GN];
    memcpy(part, s, sizeof part);
    r_added(part[0], GN, c, cr, cc, m, n, first);
}
#if defined(R_TILES)
// 32 rows and 32 columns. A's rows lie `pitch` bytes apart, the lower 16 `below` bytes after the upper, and the
// next 32 items `next` bytes further.
static inline void r_micro_tiles(const char* a, int64_t pitch, int64_t below, int64_t next, const float* b, int64_t words, float* c, int64_t cr, int64_t cc, int64_t m, int64_t n, bool first) {
    const bool whole = cc == 1 && m == 32 && n == 32;
    if (whole && !first) {
        tile_load<0>(c, cr * 4), tile_load<1>(c + 16, cr * 4);
        tile_load<2>(c + 16 * cr, cr * 4), tile_load<3>(c + 16 * cr + 16, cr * 4);
    } else tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int64_t k = 0; k < words; k += 16, a += next) {
        tile_load<4>(a, pitch);
        tile_load<6>(b + k * GN, GN * 4);
        tile_dpbf16ps<0, 4, 6>();
        if (m > 16) tile_load<5>(a + below, pitch), tile_dpbf16ps<2, 5, 6>();
        if (n > 16) tile_load<7>(b + k * GN + 16, GN * 4), tile_dpbf16ps<1, 4, 7>();
        if (m > 16 && n > 16) tile_dpbf16ps<3, 5, 7>();
    }
    alignas(64) float part[32][32];
    float* to = whole ? c : part[0];
    const int64_t row = whole ? cr : 32;
    tile_store<0>(to, row * 4), tile_store<1>(to + 16, row * 4);
    tile_store<2>(to + 16 * row, row * 4), tile_store<3>(to + 16 * row + 16, row * 4);
    if (!whole) r_added(part[0], 32, c, cr, cc, m, n, first);
}
#endif
// A's element (row, k) is 0 and C's (row, column) goes unread outside of bands beside the diagonal:
// from row + from to before row + upto.
#define BAND_NONE ((int64_t)1 << 60)
struct r_bands { int64_t k_from, k_upto, n_from, n_upto; };
// What follows a product: called as (part, row, r_low, r_high, c_low, c_high) for every block of C that is
// ready; C's element (r, c) is part[r * row + c].
struct r_epilogue {
    const void* own = nullptr;
    void (*call)(const void*, const float*, int64_t, int64_t, int64_t, int64_t, int64_t) = nullptr;
    r_epilogue() = default;
    template <typename F> explicit r_epilogue(const F& function) : own(&function) {
        call = [](const void* self, const float* part, int64_t row, int64_t r_low, int64_t r_high, int64_t c_low, int64_t c_high) {
            (*(const F*)self)(part, row, r_low, r_high, c_low, c_high);
        };
    }
    R_METHOD void operator()(const float* part, int64_t row, int64_t r_low, int64_t r_high, int64_t c_low, int64_t c_high) const {
        if (call) call(own, part, row, r_low, r_high, c_low, c_high);
    }
};
template <bool PAIRS, bool TILES, typename A, typename B>
static void r_gemm_of(int64_t M, int64_t N, int64_t K, const A& a, const B& b, float* c, int64_t cr, int64_t cc, int64_t thread, int64_t team, r_bands bands, const r_epilogue& epilogue) {
    constexpr int MR = TILES ? 32 : GM, PANEL = TILES ? 16 : GM, UNIT = TILES ? 32 : PAIRS ? 2 : 1;
    constexpr int64_t most = (PAIRS ? 2 : 1) * R_DEPTH, high_a = (R_ROWS + 31) / 32 * 32;
    static thread_local float* packed = nullptr;
    constexpr int64_t size_a = (R_DEPTH + 16) * high_a + 64, size_b = (R_DEPTH + 16) * (R_COLUMNS + GN) + 64;
    if (!packed) packed = (float*)aligned_alloc(64, sizeof(float) * (size_a + size_b + R_ROWS * R_COLUMNS));
    float *pa = packed, *pb = packed + size_a, *block = pb + size_b;
    const bool by_rows = M > N;
    const int64_t wide = by_rows ? M : N, unit = by_rows ? MR : GN;
    const int64_t share = ((wide + team - 1) / team + unit - 1) / unit * unit;
    const int64_t low = whole_min(thread * share, wide), high = whole_min(low + share, wide);
    const int64_t m0 = by_rows ? low : 0, m1 = by_rows ? high : M;
    const int64_t n0 = by_rows ? 0 : low, n1 = by_rows ? N : high;
    if (K == 0) {
        for (int64_t i = m0; i < m1; ++i) for (int64_t j = n0; j < n1; ++j) c[i * cr + j * cc] = 0.f;
        epilogue(c, cr, m0, m1, n0, n1);
        return;
    }
    const int64_t times = (K + most - 1) / most;
    const int64_t deep = ((K + times - 1) / times + UNIT - 1) / UNIT * UNIT;
    const bool passing = epilogue.call && times == 1;  // only the epilogue reads C: one block has room for it
    constexpr bool UNPACKED = sizeof(typename B::Item) == 4;
    const bool direct = UNPACKED && m1 - m0 <= R_DIRECT;  // few rows: packing would not pay
    for (int64_t j = n0; j < n1; j += R_COLUMNS) {
        const int64_t nc = whole_min(R_COLUMNS, n1 - j);
        for (int64_t k = 0; k < K; k += deep) {
            const int64_t kc = whole_min(deep, K - k), words = r_words_of<PAIRS, TILES>(kc);
            for (int64_t jj = 0; jj < nc; jj += GN)
                if (!direct || nc - jj < GN || !b.flat_across(j + jj, GN))
                    r_pack<PAIRS, TILES, false, GN>(pb + jj * words, b.from(j + jj, k), whole_min(GN, nc - jj), kc);
            for (int64_t i = m0; i < m1; i += R_ROWS) {
                const int64_t mc = whole_min(R_ROWS, m1 - i);
                float* out = passing ? block - i * R_COLUMNS - j : c;
                const int64_t step_r = passing ? R_COLUMNS : cr, step_c = passing ? 1 : cc;
                const bool last = k + kc >= K;
                if (k > 0 && (k >= i + mc - 1 + bands.k_upto || k + kc <= i + bands.k_from)) {
                    if (last) epilogue(out, step_r, i, i + mc, j, j + nc);
                    continue;
                }
                const int64_t ka = k > 0 ? whole_min(kc, i + mc - 1 + bands.k_upto - k) : whole_max(1, whole_min(kc, i + mc - 1 + bands.k_upto));
                const int64_t deep_a = r_words_of<PAIRS, TILES>(ka);
                bool lying = false;  // tiles are loaded from rows of A where they lie
                if constexpr (TILES && !A::TABLES) lying = a.along == 1 && ka % 32 == 0 && mc % 16 == 0;
                if (!lying) r_pack<PAIRS, TILES, TILES, PANEL>(pa, a.from(i, k), mc, ka);
                for (int64_t jj = 0; jj < nc; jj += GN)
                    for (int64_t ii = 0; ii < mc; ii += MR) {
                        const int64_t m = whole_min(MR, mc - ii), n = whole_min(GN, nc - jj), row = i + ii, end = row + m - 1;
                        int64_t from = whole_max(0, row + bands.k_from - k), upto = whole_min(ka, end + bands.k_upto - k);
                        if (j + jj >= end + bands.n_upto || j + jj + n <= row + bands.n_from) upto = from;
                        if constexpr (PAIRS) from /= 2, upto = (upto + 1) / 2;
                        if (upto <= from && k > 0) continue;
                        from = whole_min(from, deep_a);
                        float* to = out + row * step_r + (j + jj) * step_c;
#if defined(R_TILES)
                        if constexpr (TILES) {
                            from = from / 16 * 16, upto = (upto + 15) / 16 * 16;
                            const char* top = (const char*)(pa + ii * deep_a + from * 16);
                            int64_t pitch = 64, below = 64 * deep_a, next = 1024;
                            if constexpr (!A::TABLES)
                                if (lying) top = (const char*)a.at(row, k + 2 * from), pitch = 2 * a.across, below = 16 * pitch, next = 64;
                            r_micro_tiles(top, pitch, below, next, pb + jj * words + from * GN, upto - from, to, step_r, step_c, m, n, k == 0);
                            continue;
                        }
#endif
                        const float* top = pa + ii * deep_a + from * GM;
                        if constexpr (UNPACKED)
                            if (direct && n == GN && b.flat_across(j + jj, GN)) {
                                const B own = b.from(j + jj, k + from);
                                if constexpr (B::TABLES) r_micro<PAIRS, true>(top, (const float*)own.p + own.across[0], 0, own.along, upto - from, to, step_r, step_c, m, n, k == 0);
                                else r_micro<PAIRS, false>(top, (const float*)own.p, own.along, nullptr, upto - from, to, step_r, step_c, m, n, k == 0);
                                continue;
                            }
                        r_micro<PAIRS, false>(top, pb + jj * words + from * GN, GN, nullptr, upto - from, to, step_r, step_c, m, n, k == 0);
                    }
                if (last) epilogue(out, step_r, i, i + mc, j, j + nc);
            }
        }
    }
}
// Products of denormal numbers take a hundred times as long as others: while this lives, they count as 0.
#if defined(__SSE__) && R_DENORMALS == 0
struct r_flushed {
    const unsigned before = __builtin_ia32_stmxcsr();
    r_flushed() { __builtin_ia32_ldmxcsr(before | 0x8040u); }
    ~r_flushed() { __builtin_ia32_ldmxcsr(before); }
};
#else
struct r_flushed {
    ~r_flushed() {}
};
#endif
template <typename A, typename B>
static void r_gemm(int64_t M, int64_t N, int64_t K, const A& a, const B& b, float* c, int64_t cr, int64_t cc, int64_t thread, int64_t team, r_bands bands = {-BAND_NONE, BAND_NONE, -BAND_NONE, BAND_NONE}, const r_epilogue& epilogue = {}) {
    const r_flushed flushed;
    constexpr bool HALVES = sizeof(typename A::Item) == 2 && sizeof(typename B::Item) == 2;
#if defined(R_TILES)
    if constexpr (HALVES)
        if (M * N >= 256 && amx_permitted()) {
            AmxScope tiles(amx_full_config());
            return r_gemm_of<true, true>(M, N, K, a, b, c, cr, cc, thread, team, bands, epilogue);
        }
#endif
#if defined(__AVX512BF16__)
    r_gemm_of<HALVES, false>(M, N, K, a, b, c, cr, cc, thread, team, bands, epilogue);
#else
    r_gemm_of<false, false>(M, N, K, a, b, c, cr, cc, thread, team, bands, epilogue);
#endif
}
