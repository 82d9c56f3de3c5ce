// C[M][N] = A[M][K] . B[K][N] (+ bias[N]): bf16 or fp32 operands, fp32 sums over the whole of K, bf16 or fp32 C.
//
// Blocks of A and B are packed by all threads together, then tasks (macro-tiles of C) are handed out one by one.
// Blocks are sized to lie in L2/L3. Where K is summed in more than one piece, the partial sums of a block of C stay
// in fp32 scratch, one contiguous MR x NR tile after another, until the last piece. A tile of C is summed by one
// thread in a fixed order, so the result does not depend on the number of threads.
#pragma once
#include <omp.h>

#include "gemm_micro.h"
#include "gemm_scratch.h"

struct Gemm {
    int64_t m, n, k;
    Operand a, b;  // a: p = m; b: p = n
    void* c;       // row-major
    int64_t c_dtype, c_stride;
    const void* bias = nullptr;  // of n, or null
    int64_t bias_dtype = FP32;
};

constexpr int64_t PACK_BYTES = int64_t{4} << 20;  // of a packed block of A, and of B
constexpr int64_t KB = 2048;                      // the depth of k that is packed at once
constexpr int64_t ROWS_ALIGNED = 96;              // a multiple of every panel width, of MR and of NR
constexpr bool B_STAYS = KC * NR * 4 <= 24 << 10;
constexpr int64_t STRIP = 192;                    // rows packed at a time: whole lines and panels, few pages

struct GemmPlan {
    int64_t mb, nb, kb;  // the block of M, N, K that is packed at once
    int64_t mt, nt;      // the macro-tile of a task
};

// `size` in the fewest equal pieces of at most `limit`, rounded up to `multiple`.
static inline int64_t even_piece(int64_t size, int64_t limit, int64_t multiple) {
    const int64_t pieces = (size + limit - 1) / limit;
    return round_up((size + pieces - 1) / pieces, multiple);
}

static inline int64_t block_rows(int64_t rows, int64_t kb) {
    return even_piece(rows, PACK_BYTES / (padded_units(kb) * 4), ROWS_ALIGNED);
}

// Halve the macro-tile until every thread has a few, to even out threads that were held up.
static GemmPlan gemm_plan(const Gemm& g, int threads) {
    GemmPlan plan;
    plan.kb = even_piece(g.k, KB, BLOCK * UNIT);
    plan.mb = block_rows(g.m, plan.kb);
    plan.nb = block_rows(g.n, plan.kb);
    plan.mt = 96;
    plan.nt = 4 * NR;
    const int64_t m = min64(plan.mb, g.m), n = min64(plan.nb, g.n);
    auto tasks = [&] { return ((m + plan.mt - 1) / plan.mt) * ((n + plan.nt - 1) / plan.nt); };
    // Not narrower ones: threads that write the same lines of C wait for each other.
    if (B_STAYS && tasks() < 16 * threads) plan.mt = 48;
    while (tasks() < 4 * threads && (plan.nt > NR || plan.mt > MR)) {
        if (plan.nt / NR >= plan.mt / MR || plan.mt == MR)
            plan.nt = plan.nt / 2 / NR * NR > 0 ? plan.nt / 2 / NR * NR : NR;
        else
            plan.mt = plan.mt / 2 / MR * MR > 0 ? plan.mt / 2 / MR * MR : MR;
    }
    return plan;
}

// Whether the micro-kernel reads A where it lies: rows of fp32 that do not all meet in the same sets of L1.
static inline bool reads_rows(const Gemm& g) {
#if defined(GEMM_READS_ROWS)
    return g.a.dtype == FP32 && g.a.k_stride == 1 && g.a.p_stride % 1024 != 0;
#else
    (void)g;
    return false;
#endif
}

// Shared among the threads of the enclosing parallel region; ends without a barrier.
template <int64_t PANEL, Order ORDER>
static void pack_together(const Operand& x, int64_t p, int64_t rows, int64_t k, int64_t depth, uint32_t* to) {
    const int64_t kup = padded_units(depth);
#pragma omp for schedule(static) nowait
    for (int64_t strip = 0; strip < rows; strip += STRIP)
        pack_strip<PANEL, ORDER>(x, p + strip, min64(STRIP, rows - strip), k, depth, to + strip * kup);
}

#if defined(GEMM_AVX512)
static inline __m512 bias16(const Gemm& g, int64_t n, __mmask16 mask) {
    if (g.bias == nullptr) return _mm512_setzero_ps();
    return g.bias_dtype == BF16 ? load_floats<BF16>(g.bias, n, mask) : load_floats<FP32>(g.bias, n, mask);
}

static void store_tile(const Gemm& g, const float* tile, int64_t m, int64_t n, int64_t rows, int64_t cols) {
    for (int64_t j = 0; j < cols; j += 16) {
        const __mmask16 mask = first16(cols - j);
        const __m512 bias = bias16(g, n + j, mask);
        for (int64_t i = 0; i < rows; ++i) {
            const __m512 value = _mm512_add_ps(_mm512_load_ps(tile + i * NR + j), bias);
            const int64_t at = (m + i) * g.c_stride + n + j;
            if (g.c_dtype == BF16)
                _mm256_mask_storeu_epi16(static_cast<uint16_t*>(g.c) + at, mask, halves_of_floats(value));
            else
                _mm512_mask_storeu_ps(static_cast<float*>(g.c) + at, mask, value);
        }
    }
}
#else
static inline float bias_at(const Gemm& g, int64_t n) {
    if (g.bias == nullptr) return 0;
    return g.bias_dtype == BF16 ? float_of_bf16(static_cast<const uint16_t*>(g.bias)[n]) : static_cast<const float*>(g.bias)[n];
}

static void store_tile(const Gemm& g, const float* tile, int64_t m, int64_t n, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) {
            const float value = tile[i * NR + j] + bias_at(g, n + j);
            const int64_t at = (m + i) * g.c_stride + n + j;
            if (g.c_dtype == BF16)
                static_cast<uint16_t*>(g.c)[at] = bf16_of_float(value);
            else
                static_cast<float*>(g.c)[at] = value;
        }
}
#endif

struct GemmBlock {
    int64_t m, n, k, rows, cols, depth;  // where the block of C and of k starts, its size, and the packed depth of k
    const uint32_t *a, *b;
    float* partial;  // the block's fp32 tiles, or null where K is summed in one piece
    bool first, last;
};

// One macro-tile: rows i0.., columns j0.. of the block. The panel of A stays in L1 while the columns go by, or that of B
// while the rows do, where a panel of B fits.
static void run_task(const Gemm& g, const GemmPlan& plan, const GemmBlock& block, int64_t i0, int64_t j0) {
    alignas(64) float own[MR * NR];
    const int64_t kup = padded_units(block.depth), tiles_across = (block.cols + NR - 1) / NR;
    const int64_t i1 = min64(i0 + plan.mt, block.rows), j1 = min64(j0 + plan.nt, block.cols);
    for (int64_t k = 0; k < block.depth; k += KC) {
        const int64_t depth = min64(KC, block.depth - k), at = k / UNIT;
        const bool add = !(block.first && k == 0), done = block.last && k + depth == block.depth;
        auto tile_at = [&](int64_t i, int64_t j) {
            const int64_t rows = min64(MR, i1 - i), cols = min64(NR, j1 - j);
            // A whole fp32 tile of C is its own sum, which starts from the bias.
            const bool direct = g.c_dtype == FP32 && (g.bias == nullptr || g.bias_dtype == FP32) && rows == MR && cols % VECTOR == 0;
            float* tile = direct          ? static_cast<float*>(g.c) + (block.m + i) * g.c_stride + block.n + j
                          : block.partial ? block.partial + ((i / MR) * tiles_across + j / NR) * MR * NR
                                          : own;
            const int64_t ld = direct ? g.c_stride : NR;
            const bool biased = direct && g.bias != nullptr && !add;
            for (int64_t r = 0; biased && r < MR; ++r)
                std::memcpy(tile + r * ld, static_cast<const float*>(g.bias) + block.n + j, static_cast<std::size_t>(cols) * 4);
            const int vectors = static_cast<int>((cols + VECTOR - 1) / VECTOR);
            const uint32_t* b = block.b + j * kup + at * B_PANEL;
#if defined(GEMM_READS_ROWS)
            if (block.a == nullptr) {
                const float* a = static_cast<const float*>(g.a.data) + (block.m + i) * g.a.p_stride + block.k + k;
                micro_rows(micro_units(depth), a, g.a.p_stride, rows, b, tile, ld, vectors, add || biased);
            } else
#endif
                micro(micro_units(depth), kup, block.a + i * kup + at * A_PANEL, b, tile, ld, vectors, add || biased);
            if (done && !direct) store_tile(g, tile, block.m + i, block.n + j, rows, cols);
        };
        if (B_STAYS) {
            for (int64_t j = j0; j < j1; j += NR)
                for (int64_t i = i0; i < i1; i += MR) tile_at(i, j);
        } else {
            for (int64_t i = i0; i < i1; i += MR)
                for (int64_t j = j0; j < j1; j += NR) tile_at(i, j);
        }
    }
}

template <int64_t PANEL, Order ORDER>
static void pack_alone(const Operand& x, int64_t p, int64_t rows, int64_t depth, uint32_t* to) {
    const int64_t kup = padded_units(depth);
    for (int64_t strip = 0; strip < rows; strip += STRIP)
        pack_strip<PANEL, ORDER>(x, p + strip, min64(STRIP, rows - strip), 0, depth, to + strip * kup);
}

// A product of one block on few threads: each packs B for itself and has rows of its own, so that nobody waits. Waking a thread
// that sleeps in a barrier costs as much as a small product.
static void gemm_apart(const Gemm& g, const GemmPlan& plan, int threads) {
    const int64_t kup = padded_units(g.k), each = round_up((g.m + threads - 1) / threads, MR);
    const int64_t a_units = round_up(each, ROWS_ALIGNED) * kup, b_units = round_up(g.n, ROWS_ALIGNED) * kup;
    const int64_t tiles = each * round_up(g.n, NR);
    uint32_t* a = reads_rows(g) ? nullptr : static_cast<uint32_t*>(scratch<0>(threads * a_units * 4));
    uint32_t* b = static_cast<uint32_t*>(scratch<1>(threads * b_units * 4));
    float* partial = g.k <= KC ? nullptr : static_cast<float*>(scratch<2>(threads * tiles * 4));
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int64_t part = 0; part < threads; ++part) {
        const int64_t m = part * each, rows = min64(each, g.m - m);
        if (rows <= 0) continue;
        const MicroScope scope;
        if (a) pack_alone<A_PANEL, A_ORDER>(g.a, m, rows, g.k, a + part * a_units);
        pack_alone<B_PANEL, Order::k_major>(g.b, 0, g.n, g.k, b + part * b_units);
        const GemmBlock block{m, 0, 0, rows, g.n, g.k, a ? a + part * a_units : nullptr, b + part * b_units,
                              partial ? partial + part * tiles : nullptr, true, true};
        for (int64_t i = 0; i < rows; i += plan.mt)
            for (int64_t j = 0; j < g.n; j += plan.nt) run_task(g, plan, block, i, j);
        (void)scope;
    }
}

constexpr int FEW_THREADS = 4;

static void gemm(const Gemm& g) {
    const int threads = omp_get_max_threads();
    const GemmPlan plan = gemm_plan(g, threads);
    if (B_STAYS && threads > 1 && threads <= FEW_THREADS && g.m <= plan.mb && g.n <= plan.nb && g.k <= plan.kb)
        return gemm_apart(g, plan, threads);
    const int64_t kup = padded_units(plan.kb);
    uint32_t* a = reads_rows(g) ? nullptr : static_cast<uint32_t*>(scratch<0>(plan.mb * kup * 4));
    uint32_t* b = static_cast<uint32_t*>(scratch<1>(plan.nb * kup * 4));
    float* partial = g.k <= KC ? nullptr : static_cast<float*>(scratch<2>(plan.mb * plan.nb * 4));
#pragma omp parallel
    {
        const MicroScope scope;
        int64_t a_row = -1, a_k = -1, b_row = -1, b_k = -1;  // which blocks are packed
        for (int64_t n = 0; n < g.n; n += plan.nb)
            for (int64_t m = 0; m < g.m; m += plan.mb)
                for (int64_t k = 0; k < g.k; k += plan.kb) {
                    const GemmBlock block{m, n, k, min64(plan.mb, g.m - m), min64(plan.nb, g.n - n), min64(plan.kb, g.k - k), a, b,
                                          partial, k == 0, k + plan.kb >= g.k};
                    if (a && (m != a_row || k != a_k)) pack_together<A_PANEL, A_ORDER>(g.a, m, block.rows, k, block.depth, a);
                    if (n != b_row || k != b_k) pack_together<B_PANEL, Order::k_major>(g.b, n, block.cols, k, block.depth, b);
                    a_row = m, a_k = k, b_row = n, b_k = k;
#pragma omp barrier
#pragma omp for schedule(dynamic) collapse(2)
                    for (int64_t i = 0; i < block.rows; i += plan.mt)
                        for (int64_t j = 0; j < block.cols; j += plan.nt) run_task(g, plan, block, i, j);
                }
        (void)scope;
    }
}
