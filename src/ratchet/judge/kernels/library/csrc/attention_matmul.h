// C (+)= A.B for blocks in cache: what attention's five products are made of.
//
//   A  row-major, `a_stride` elements between rows
//   B  panels of sixteen columns, `b_panel` elements apart; a panel is `steps` x 16 x PAIR elements,
//      where PAIR neighbours of the summed dimension lie side by side (bf16: 2, "VNNI"; fp32: 1)
//   C  fp32 row-major, `c_stride` floats between rows
// `rows` is a multiple of 16; with AMX, `steps` is a multiple of 16 too.
#pragma once
#include <type_traits>

#include "attention_vector.h"

#if defined(RATCHET_ISA_AMX)
#include "amx_tiles.h"
#endif

#if defined(RATCHET_ISA_AMX) || (defined(RATCHET_ISA_AVX512_BF16) && defined(RATCHET_ROUNDS_BF16))
#define RATCHET_BF16_PRODUCTS  // of bf16 tensors; all others are products of fp32, in attention_rows.h
#endif

template <class E>
struct Pair {
    static const int64_t size = 1;
};
template <>
struct Pair<uint16_t> {
    static const int64_t size = 2;
};

static const int MICRO_PANELS = 2;

RATCHET_INLINE floats dot_step(floats c, const float* a, floats b) {
    return multiply_add(splat(*a), b, c);
}

#if defined(RATCHET_ISA_AVX512_BF16) && defined(RATCHET_ROUNDS_BF16)
RATCHET_INLINE floats dot_step(floats c, const uint16_t* a, floats b) {
    int32_t pair;
    std::memcpy(&pair, a, 4);
    return {{(lanes)_mm512_dpbf16_ps((__m512)c.part[0], (__m512bh)_mm512_set1_epi32(pair),
                                     (__m512bh)b.part[0])}};
}
RATCHET_INLINE floats load_words(const uint16_t* p) {
    return load(reinterpret_cast<const float*>(p));
}
#endif
RATCHET_INLINE floats load_words(const float* p) { return load(p); }

template <int ROWS, int PANELS, class E>
static inline void micro(const E* a, int64_t a_stride, const E* b, int64_t b_panel, float* c,
                         int64_t c_stride, int64_t steps, bool accumulate) {
    const int64_t pair = Pair<E>::size;
    floats sum[ROWS][PANELS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p)
            sum[r][p] = accumulate ? load(c + r * c_stride + p * PANEL) : splat(0.0f);
    for (int64_t k = 0; k < steps; ++k) {
        floats column[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) column[p] = load_words(b + p * b_panel + k * PANEL * pair);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p)
                sum[r][p] = dot_step(sum[r][p], a + r * a_stride + k * pair, column[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) store(c + r * c_stride + p * PANEL, sum[r][p]);
}

template <int PANELS, class E>
static inline void micro_columns(const E* a, int64_t a_stride, const E* b, int64_t b_panel, float* c,
                                 int64_t c_stride, int64_t rows, int64_t steps, bool accumulate) {
    auto some = [&](auto count, int64_t r) {
        micro<count, PANELS, E>(a + r * a_stride, a_stride, b, b_panel, c + r * c_stride, c_stride, steps,
                                accumulate);
    };
    for (int64_t r = 0; r < rows; r += 16) {
        // As many rows as leave registers for two panels and a broadcast.
        for (int i = 0; i < 16; i += 8) some(std::integral_constant<int, 8>(), r + i);
    }
}

template <class E>
static inline void matmul(const E* a, int64_t a_stride, const E* b, int64_t b_panel, float* c,
                          int64_t c_stride, int64_t rows, int64_t panels, int64_t steps,
                          bool accumulate) {
    int64_t p = 0;
    for (; p + MICRO_PANELS <= panels; p += MICRO_PANELS)
        micro_columns<MICRO_PANELS, E>(a, a_stride, b + p * b_panel, b_panel, c + p * PANEL, c_stride,
                                       rows, steps, accumulate);
    for (; p < panels; ++p)
        micro_columns<1, E>(a, a_stride, b + p * b_panel, b_panel, c + p * PANEL, c_stride, rows, steps,
                            accumulate);
}

#if defined(RATCHET_ISA_AMX)
// Tiles: 0-3 sums, 4-5 rows of A, 6-7 panels of B.
template <bool TWO_ROWS, bool TWO_PANELS>
static inline void tile_micro(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_panel,
                              float* c, int64_t c_stride, int64_t steps, bool accumulate) {
    float* below = c + 16 * c_stride;
    const int64_t c_bytes = c_stride * 4, a_bytes = a_stride * 2;
    if (accumulate) {
        tile_load<0>(c, c_bytes);
        if (TWO_PANELS) tile_load<1>(c + PANEL, c_bytes);
        if (TWO_ROWS) tile_load<2>(below, c_bytes);
        if (TWO_ROWS && TWO_PANELS) tile_load<3>(below + PANEL, c_bytes);
    } else {
        tile_zero<0>();
        if (TWO_PANELS) tile_zero<1>();
        if (TWO_ROWS) tile_zero<2>();
        if (TWO_ROWS && TWO_PANELS) tile_zero<3>();
    }
    for (int64_t k = 0; k < steps; k += 16) {
        tile_load<6>(b + k * 32, 64);
        tile_load<4>(a + k * 2, a_bytes);
        tile_dpbf16ps<0, 4, 6>();
        if (TWO_PANELS) {
            tile_load<7>(b + b_panel + k * 32, 64);
            tile_dpbf16ps<1, 4, 7>();
        }
        if (TWO_ROWS) {
            tile_load<5>(a + 16 * a_stride + k * 2, a_bytes);
            tile_dpbf16ps<2, 5, 6>();
        }
        if (TWO_ROWS && TWO_PANELS) tile_dpbf16ps<3, 5, 7>();
    }
    tile_store<0>(c, c_bytes);
    if (TWO_PANELS) tile_store<1>(c + PANEL, c_bytes);
    if (TWO_ROWS) tile_store<2>(below, c_bytes);
    if (TWO_ROWS && TWO_PANELS) tile_store<3>(below + PANEL, c_bytes);
}

template <bool TWO_PANELS>
static inline void tile_columns(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_panel,
                                float* c, int64_t c_stride, int64_t rows, int64_t steps,
                                bool accumulate) {
    int64_t r = 0;
    for (; r + 32 <= rows; r += 32)
        tile_micro<true, TWO_PANELS>(a + r * a_stride, a_stride, b, b_panel, c + r * c_stride, c_stride,
                                     steps, accumulate);
    for (; r < rows; r += 16)
        tile_micro<false, TWO_PANELS>(a + r * a_stride, a_stride, b, b_panel, c + r * c_stride, c_stride,
                                      steps, accumulate);
}

template <>
inline void matmul<uint16_t>(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_panel,
                             float* c, int64_t c_stride, int64_t rows, int64_t panels, int64_t steps,
                             bool accumulate) {
    int64_t p = 0;
    for (; p + 2 <= panels; p += 2)
        tile_columns<true>(a, a_stride, b + p * b_panel, b_panel, c + p * PANEL, c_stride, rows, steps,
                           accumulate);
    for (; p < panels; ++p)
        tile_columns<false>(a, a_stride, b + p * b_panel, b_panel, c + p * PANEL, c_stride, rows, steps,
                            accumulate);
}
#endif
