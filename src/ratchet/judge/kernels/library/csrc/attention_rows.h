// Attention's products in fp32, a query to a row, for tensors of fp32 and, widened, of bf16.
//
//   A  rows of fp32, `a_stride` floats apart; with TRANSPOSED, element (r, k) lies at a[r + k * a_stride]
//   B  panels of sixteen columns, `b_panel` floats apart; a panel is [steps][16]
//   C  fp32 rows, `c_stride` floats apart
// Two layouts of a tensor's rows serve as B: `across`, [rows/16][width][16], sums over features;
// `down`, [width/16][rows][16], sums over rows. `width` is the head size rounded up to 16.
#pragma once
#include "attention_pack.h"

#if RATCHET_LANES == 16
static const int TILE_ROWS = 8, TILE_PANELS = 2;
#elif RATCHET_LANES == 8
static const int TILE_ROWS = 6, TILE_PANELS = 1;  // 12 of 16 registers hold sums
#else
static const int TILE_ROWS = 2, TILE_PANELS = 1;
#endif
static const int64_t QUERIES = 48;  // of a block: whole tiles of 2, 6 and 8 rows

template <bool TRANSPOSED, int ROWS, int PANELS>
static __attribute__((noinline)) void tile(const float* a, int64_t a_stride, const float* b, int64_t b_panel, float* c,
                                           int64_t c_stride, int64_t steps, bool accumulate) {
    floats sum[ROWS][PANELS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) sum[r][p] = accumulate ? load(c + r * c_stride + p * PANEL) : splat(0.0f);
    for (int64_t k = 0; k < steps; ++k) {
        floats column[PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) column[p] = load(b + p * b_panel + k * PANEL);
#if RATCHET_LANES == 8  // keeps GCC from reading them from memory again for every row
        asm("" : "+x"(column[0].part[0]), "+x"(column[0].part[1]));
#endif
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const floats repeated = splat(TRANSPOSED ? a[r + k * a_stride] : a[r * a_stride + k]);
#pragma GCC unroll 2
            for (int p = 0; p < PANELS; ++p) sum[r][p] = multiply_add(repeated, column[p], sum[r][p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) store(c + r * c_stride + p * PANEL, sum[r][p]);
}

// One tile of at most TILE_ROWS rows and TILE_PANELS panels.
template <bool TRANSPOSED, int ROWS = TILE_ROWS>
static inline void some_tile(int64_t rows, int64_t panels, const float* a, int64_t a_stride, const float* b, int64_t b_panel,
                             float* c, int64_t c_stride, int64_t steps, bool accumulate) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS)
            return some_tile<TRANSPOSED, ROWS - 1>(rows, panels, a, a_stride, b, b_panel, c, c_stride, steps, accumulate);
    }
    if (panels < TILE_PANELS)
        return tile<TRANSPOSED, ROWS, 1>(a, a_stride, b, b_panel, c, c_stride, steps, accumulate);
    tile<TRANSPOSED, ROWS, TILE_PANELS>(a, a_stride, b, b_panel, c, c_stride, steps, accumulate);
}

// 2^x for one register: at most 2 ulp where the result is normal, 0 below that, NaN for NaN.
// x = n + f with |f| <= 1/2; 2^f by Cephes' polynomial. n + 127 comes out of the rounding as an exponent's bits.
RATCHET_INLINE lanes exp2_lanes(lanes x) {
#if RATCHET_LANES == 16
    x = (lanes)_mm512_max_ps(_mm512_set1_ps(-1000.0f), (__m512)x);  // NaN: the second operand
    const lanes n = (lanes)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
#if RATCHET_LANES == 8
    x = (lanes)_mm256_max_ps(_mm256_set1_ps(-127.0f), (__m256)x);
#else
    x = x < lanes_of(-127.0f) ? lanes_of(-127.0f) : x;
#endif
    const lanes magic = lanes_of(12582912.0f + 127.0f), shifted = x + magic, n = shifted - magic;
#endif
    const lanes f = x - n;
    lanes p = lanes_of(1.535336188e-4f);
    p = p * f + 1.339887440e-3f;
    p = p * f + 9.618437358e-3f;
    p = p * f + 5.550332471e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472029e-1f;
    p = p * f + 1.0f;
#if RATCHET_LANES == 16
    return (lanes)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return p * (lanes)((lane_bits)shifted << 23);
#endif
}
RATCHET_INLINE floats exp2_of(floats x) {
    return each([&](int i) __attribute__((always_inline)) { return exp2_lanes(x.part[i]); });
}

// a in the first `count` lanes, `other` behind them.
RATCHET_INLINE floats to_lane(int64_t count, floats a, float other) {
#if RATCHET_LANES == 16
    const __mmask16 keep = static_cast<__mmask16>(count >= PANEL ? 0xffff : (1 << count) - 1);
    return {{(lanes)_mm512_mask_blend_ps(keep, (__m512)lanes_of(other), (__m512)a.part[0])}};
#else
    lane_bits place;
    for (int i = 0; i < RATCHET_LANES; ++i) place[i] = i;
    return each([&](int i) __attribute__((always_inline)) {
        const lane_bits limit = static_cast<int32_t>(count) - i * RATCHET_LANES - lane_bits{};
        return place < limit ? a.part[i] : lanes_of(other);
    });
#endif
}

RATCHET_INLINE float largest_of(floats a) {
    lanes x = a.part[0];
    for (int i = 1; i < PARTS; ++i) x = a.part[i] > x ? a.part[i] : x;
    float at[RATCHET_LANES];
    std::memcpy(at, &x, sizeof at);
    for (int half = RATCHET_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) at[i] = at[i + half] > at[i] ? at[i + half] : at[i];
    return at[0];
}

RATCHET_INLINE float total_of(floats a) {
    lanes x = a.part[0];
    for (int i = 1; i < PARTS; ++i) x = x + a.part[i];
    float at[RATCHET_LANES];
    std::memcpy(at, &x, sizeof at);
    for (int half = RATCHET_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) at[i] += at[i + half];
    return at[0];
}

static const float LOG2_E = 1.44269504f;

static const int64_t AHEAD = 12;  // rows: a head's lie in other pages, so the hardware fetches none ahead

// Layouts of rows first .. first + count of a head; what lies beyond the head is zero.

template <class In>
static inline void copy_rows(const Head<In>& head, int64_t first, int64_t count, int64_t width, float* out) {
    for (int64_t r = 0; r < count; ++r, out += width)
        for (int64_t d = 0; d < width; d += PANEL) {
            const In* from = head.data + (first + r) * head.row_stride + d;
            __builtin_prefetch(from + AHEAD * head.row_stride);
            store(out + d, load_some(from, head.features - d));
        }
}

template <class In>
static inline void pack_across(const Head<In>& head, int64_t first, int64_t count, int64_t width, float* out) {
    alignas(64) float block[PANEL * PANEL];
    for (int64_t r = first; r < first + count; r += PANEL, out += width * PANEL)
        for (int64_t d = 0; d < width; d += PANEL) {
            for (int64_t i = 0; i < PANEL; ++i) {
                const In* from = head.data + (r + i) * head.row_stride + d;
                __builtin_prefetch(from + PANEL * head.row_stride);
                store(block + i * PANEL, r + i < head.rows ? load_some(from, head.features - d) : splat(0.0f));
            }
            transpose_words(block, PANEL, out + d * PANEL, PANEL);
        }
}

// `panel` floats lie between the panels of sixteen features.
template <class In>
static inline void pack_down(const Head<In>& head, int64_t first, int64_t count, int64_t width, float* out, int64_t panel) {
    for (int64_t r = 0; r < smaller(count, head.rows - first); ++r)
        for (int64_t d = 0; d < width; d += PANEL) {
            const In* from = head.data + (first + r) * head.row_stride + d;
            __builtin_prefetch(from + AHEAD * head.row_stride);
            store(out + d / PANEL * panel + r * PANEL, load_some(from, head.features - d));
        }
}
