// loss = mean over tokens of cross_entropy(x.W^T + bias, target), and its gradients, without the matrix of logits.
//
//   linear_cross_entropy   x [N,H], weight [V,H], bias [V] or [0], target [N] int64
//                          -> loss fp32 (, dx [N,H], dweight [V,H], dbias [V] or [0])
//   scalars: ignore_index, label_smoothing
//
// Tokens are processed in chunks, the vocabulary in blocks, and each thread has its own blocks. For a chunk:
//   1  logits of a few tokens x a block, in fp32 in cache; p = exp(logit - m), m the block's largest, is kept in
//      the product's dtype, the sum of p (before rounding) and m in fp32
//   2  log-sum-exp of each token from the m and sums of its blocks
//   3  dlogits = p exp(m - lse) / count - ..., for one block at a time: dx += dlogits.W (a partial sum for each thread),
//      dW += dlogits^T.x (fp32, a thread's own rows)
// p and dlogits are fp32 if x and weight both are, which only the variants without bf16 instructions take; else bf16.
// With one number of threads the order of every sum is fixed, so the result is repeatable bit for bit.
// Idea: chunked losses as in Liger Kernel (arXiv:2410.10989), online softmax (arXiv:1805.02867).
#include <cmath>
#include <new>

#include "gemm.h"
#include "gemm_rows.h"
#include "ratchet_abi.h"

#if !defined(RATCHET_CHUNK)
#define RATCHET_CHUNK 256
#endif
constexpr int64_t CHUNK = RATCHET_CHUNK;        // tokens
constexpr int64_t BLOCK_MOST = 480;             // of the vocabulary; a multiple of 96
constexpr int64_t GROUP = B_STAYS ? 32 : MR;    // tokens whose logits are in cache at a time

struct Loss {
    int64_t tokens, hidden, vocabulary;
    ratchet_tensor x, weight, bias;
    const int64_t* target;
    int64_t ignore_index;
    float smoothing;
    bool gradients;
    int64_t counted;  // tokens that are not ignored
    bool exact;       // p and dlogits are fp32
    ratchet_tensor dx, dweight, dbias;
    bool has_bias;
};

// Sizes and shared buffers of a run.
struct Work {
    int64_t chunk, block, blocks, hidden_tiles, row_tiles, hidden_units, chunk_units, block_units;
    uint32_t *x_rows, *x_columns;  // packed x of the chunk: for logits, for dW
    Lane p;                        // [blocks][chunk][block]
    float *largest, *sum, *total;  // [blocks][chunk]
    // [chunk]. The largest is kept apart from the sum: their log-sum-exp would be rounded at the size of the logits.
    float *target_logit, *most;
    double* log_sum;  // of exp(logit - most)
    float *row_loss;               // [tokens]
    float *bias;                   // [V] fp32, or null
    float *dweight;                // [V][H] fp32: the output itself, or scratch
    float *dbias;                  // [V] fp32
    char* own;                     // what each thread has for itself
    int64_t own_bytes;
};

// The part of a thread.
struct Own {
    float* logits;     // [GROUP][block]
    uint32_t* weight;  // a packed block of W, for logits, then for dx
    Lane dlogits;      // [chunk][block]
    uint32_t* rows;    // dlogits packed for dx, then its transpose for dW
    float* dx;         // [row tiles][hidden tiles][MR][NR]
};

// Hands out aligned pieces of one buffer; with no base it only adds up.
struct Carver {
    char* base;
    int64_t used = 0;
    template <class T>
    T* take(int64_t count) {
        T* at = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += round_up(count * static_cast<int64_t>(sizeof(T)), 4096) + 192;  // not all at one offset in a page
        used = round_up(used, 64);
        return at;
    }
    Lane take_lane(int64_t count, bool bf16) { return Lane{take<char>(count * (bf16 ? 2 : 4)), bf16}; }
};

static Own own_of(const Work& w, char* base, int64_t* size_bytes = nullptr) {
    Carver carver{base};
    Own own;
    const int64_t hidden = round_up(w.hidden_tiles * NR, ROWS_ALIGNED), deepest = w.chunk_units > w.block_units ? w.chunk_units : w.block_units;
    const int64_t widest = round_up(w.block > w.chunk ? w.block : w.chunk, ROWS_ALIGNED);
    own.logits = carver.take<float>(GROUP * w.block);
    const int64_t for_logits = round_up(w.block, ROWS_ALIGNED) * w.hidden_units, for_dx = hidden * w.block_units;
    own.weight = carver.take<uint32_t>(for_logits > for_dx ? for_logits : for_dx);
    own.dlogits = carver.take_lane(w.chunk * w.block, w.p.bf16);
    own.rows = carver.take<uint32_t>(widest * deepest);
    own.dx = carver.take<float>(w.row_tiles * w.hidden_tiles * MR * NR);
    if (size_bytes) *size_bytes = carver.used;
    return own;
}

// Blocks small enough that each thread has a few, large enough that sums of dx are seldom written back.
static int64_t block_size(int64_t vocabulary, int threads) {
    int64_t block = BLOCK_MOST;
    while (block > ROWS_ALIGNED && vocabulary / block < 4 * threads) block -= ROWS_ALIGNED;
    // Of the sizes down to half of that, the one with which the busiest thread has the least to do.
    auto busiest = [&](int64_t size) {
        const int64_t blocks = (vocabulary + size - 1) / size;
        int64_t most = 0;
        for (int64_t i = 0; i < threads; ++i) {
            const int64_t share = min64(vocabulary, blocks * (i + 1) / threads * size) - blocks * i / threads * size;
            most = share > most ? share : most;
        }
        return most;
    };
    int64_t best = block;
    for (int64_t size = block - NR; 2 * size >= block; size -= NR)
        if (busiest(size) < busiest(best)) best = size;
    return best;
}

static void carve(const Loss& loss, Work& w, Carver& carver) {
    const int64_t hidden = round_up(loss.hidden, ROWS_ALIGNED), rows = round_up(w.chunk, ROWS_ALIGNED);
    w.x_rows = carver.take<uint32_t>(rows * w.hidden_units);
    w.x_columns = carver.take<uint32_t>(hidden * w.chunk_units);
    w.p = carver.take_lane(loss.gradients ? w.blocks * w.chunk * w.block : 0, !loss.exact);
    w.largest = carver.take<float>(w.blocks * w.chunk);
    w.sum = carver.take<float>(w.blocks * w.chunk);
    w.total = carver.take<float>(w.blocks * w.chunk);
    w.target_logit = carver.take<float>(w.chunk);
    w.most = carver.take<float>(w.chunk);
    w.log_sum = carver.take<double>(w.chunk);
    w.row_loss = carver.take<float>(loss.tokens);
    w.bias = carver.take<float>(loss.has_bias ? loss.vocabulary : 0);
    w.dbias = carver.take<float>(loss.has_bias && loss.gradients ? loss.vocabulary : 0);
    // One chunk needs fp32 rows for a moment only, but keeping one path is worth more than that memory.
    w.dweight = carver.take<float>(loss.gradients && loss.dweight.dtype == RATCHET_BF16 ? loss.vocabulary * loss.hidden : 0);
}

static Work plan(const Loss& loss, int threads) {
    Work w{};
    w.chunk = min64(CHUNK, loss.tokens);
    w.block = block_size(loss.vocabulary, threads);
    w.blocks = (loss.vocabulary + w.block - 1) / w.block;
    w.hidden_tiles = (loss.hidden + NR - 1) / NR;
    w.row_tiles = (w.chunk + MR - 1) / MR;
    w.hidden_units = padded_units(loss.hidden);
    w.chunk_units = padded_units(w.chunk);
    w.block_units = padded_units(w.block);
    Carver sizes{nullptr};
    carve(loss, w, sizes);
    Carver carver{static_cast<char*>(scratch<0>(sizes.used))};
    carve(loss, w, carver);
    if (loss.gradients && loss.dweight.dtype == RATCHET_F32) w.dweight = static_cast<float*>(loss.dweight.data);
    own_of(w, nullptr, &w.own_bytes);
    w.own_bytes = round_up(w.own_bytes, 4096) + 4096;
    w.own = static_cast<char*>(scratch<1>(w.own_bytes * threads));
    if (!loss.has_bias) w.bias = nullptr;
    return w;
}

static Operand matrix_rows(const ratchet_tensor& t) { return {t.data, t.dtype, t.stride[0], 1}; }
static Operand matrix_columns(const ratchet_tensor& t) { return {t.data, t.dtype, 1, t.stride[0]}; }

struct Span {
    int64_t first, size;
};

// Calls tile(row, column, k, depth) for every tile of a product: the panel of B stays in L1 while the rows go by, where it
// fits, else that of A while the columns do.
template <class Tile>
static inline void each_tile(int64_t rows, int64_t cols, int64_t depth, Tile tile) {
    for (int64_t k = 0; k < depth; k += KC) {
        const int64_t deep = min64(KC, depth - k);
        if (B_STAYS) {
            for (int64_t j = 0; j < cols; j += NR)
                for (int64_t i = 0; i < rows; i += MR) tile(i, j, k, deep);
        } else {
            for (int64_t i = 0; i < rows; i += MR)
                for (int64_t j = 0; j < cols; j += NR) tile(i, j, k, deep);
        }
    }
}

// Rows from `row` on of the chunk against a packed block of W.
static void logits_of(const Loss& loss, const Work& w, const Own& own, int64_t row, int64_t rows, int64_t width) {
    each_tile(rows, width, loss.hidden, [&](int64_t i, int64_t j, int64_t k, int64_t deep) {
        micro(micro_units(deep), w.hidden_units, w.x_rows + (row + i) * w.hidden_units + k / UNIT * A_PANEL,
              own.weight + j * w.hidden_units + k / UNIT * B_PANEL, own.logits + i * w.block + j, w.block,
              static_cast<int>((min64(NR, width - j) + VECTOR - 1) / VECTOR), k > 0);
    });
}

// Step 1 for one block.
static void first_pass(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t index) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v);
    pack_strip<B_PANEL>(matrix_rows(loss.weight), v, width, 0, loss.hidden, own.weight);
    for (int64_t row = 0; row < tokens.size; row += GROUP) {
        const int64_t rows = min64(GROUP, tokens.size - row);
        logits_of(loss, w, own, row, rows, width);
        for (int64_t i = row; i < row + rows; ++i) {
            float* logits = own.logits + (i - row) * w.block;
            const RowPart part = row_scan(logits, width, w.bias ? w.bias + v : nullptr);
            const int64_t label = loss.target[tokens.first + i] - v, at = index * w.chunk + i;
            if (label >= 0 && label < width) w.target_logit[i] = logits[label];
            w.largest[at] = part.largest;
            w.total[at] = part.total;
            w.sum[at] = row_exp(logits, width, part.largest, loss.gradients ? w.p.at(at * w.block) : Lane{nullptr, false});
        }
    }
}

// Step 2 for one token of the chunk.
static void finish_row(const Loss& loss, const Work& w, Span tokens, int64_t i) {
    float largest = LOWEST_LOGIT, total = 0;
    double sum = 0;
    bool nan = false;
    for (int64_t b = 0; b < w.blocks; ++b) largest = std::fmax(largest, w.largest[b * w.chunk + i]);
    for (int64_t b = 0; b < w.blocks; ++b) {
        const float part = w.sum[b * w.chunk + i];
        nan = nan || part != part;
        sum += static_cast<double>(part) * std::exp(static_cast<double>(w.largest[b * w.chunk + i]) - largest);
        total += w.total[b * w.chunk + i];
    }
    w.most[i] = largest;
    w.log_sum[i] = nan ? NAN : std::log(sum);
    const double lse = largest + w.log_sum[i], above = largest - w.target_logit[i] + w.log_sum[i];
    const bool ignored = loss.target[tokens.first + i] == loss.ignore_index;
    const float spread = loss.smoothing > 0 ? loss.smoothing / static_cast<float>(loss.vocabulary) * total : 0.0f;
    w.row_loss[tokens.first + i] = ignored ? 0.0f : static_cast<float>((1 - loss.smoothing) * above + loss.smoothing * lse - spread);
}

// Step 3: the block's gradient with respect to logits.
static void dlogits_of(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t index) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v);
    const double share = 1.0 / static_cast<double>(loss.counted), even = static_cast<double>(loss.smoothing) / static_cast<double>(loss.vocabulary);
    for (int64_t i = 0; i < tokens.size; ++i) {
        const int64_t label = loss.target[tokens.first + i], at = index * w.chunk + i;
        const Lane row = own.dlogits.at(i * w.block);
        if (label == loss.ignore_index) {
            std::memset(row.data, 0, static_cast<std::size_t>(width) * (row.bf16 ? 2 : 4));
            continue;
        }
        // Rounded once: every class of a token has the same factor, so that its error adds up.
        const double factor = std::exp(static_cast<double>(w.largest[at]) - w.most[i] - w.log_sum[i]) * share;
        row_scale(w.p.at(at * w.block), width, static_cast<float>(factor), static_cast<float>(even * share), row);
        if (label >= v && label < v + width)
            row.store(label - v, vset(static_cast<float>((std::expm1(w.target_logit[i] - w.most[i] - w.log_sum[i]) + loss.smoothing - even) * share)), 1);
    }
}

static void add_dbias(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t index) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v);
    if (tokens.first == 0) std::memset(w.dbias + v, 0, static_cast<std::size_t>(width) * 4);
    for (int64_t j = 0; j < width; j += LANES) {
        const int64_t n = width - j;
        vf total = lane(w.dbias + v).load(j, n);
        for (int64_t first = 0; first < tokens.size; first += 16) {  // sums of sums lose less
            vf sum = vset(0.f);
            for (int64_t i = first; i < min64(first + 16, tokens.size); ++i) sum = sum + own.dlogits.load(i * w.block + j, n);
            total = total + sum;
        }
        lane(w.dbias + v).store(j, total, n);
    }
}

static Operand dlogits_by(const Own& own, int64_t p_stride, int64_t k_stride) {
    return {own.dlogits.data, own.dlogits.bf16 ? BF16 : FP32, p_stride, k_stride};
}

// Step 3: dx += dlogits . W for the block.
static void add_dx(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t index, bool first) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v), kup = padded_units(width);
#if defined(GEMM_READS_ROWS)
    const bool reads_rows = !own.dlogits.bf16;
#else
    const bool reads_rows = false;
#endif
    if (!reads_rows) pack_strip<A_PANEL, A_ORDER>(dlogits_by(own, w.block, 1), 0, tokens.size, 0, width, own.rows);
    pack_strip<B_PANEL>(matrix_columns(loss.weight), 0, loss.hidden, v, width, own.weight);
    each_tile(tokens.size, w.hidden_tiles * NR, width, [&](int64_t i, int64_t j, int64_t k, int64_t deep) {
        float* tile = own.dx + (i / MR * w.hidden_tiles + j / NR) * MR * NR;
        const uint32_t* b = own.weight + j * kup + k / UNIT * B_PANEL;
        const bool add = k > 0 || !first;
#if defined(GEMM_READS_ROWS)
        if (reads_rows) {
            const float* a = reinterpret_cast<const float*>(own.dlogits.data) + i * w.block + k;
            return micro_rows(micro_units(deep), a, w.block, min64(MR, tokens.size - i), b, tile, NR, NR / VECTOR, add);
        }
#endif
        micro(micro_units(deep), kup, own.rows + i * kup + k / UNIT * A_PANEL, b, tile, NR, NR / VECTOR, add);
    });
}

static inline void prefetch_tile(const float* c, int64_t ld, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < NR; j += 16) __builtin_prefetch(c + i * ld + j, 1);
}

// Step 3: dW += dlogits^T . x for the rows of the block.
static void add_dweight(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t index) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v), kup = padded_units(tokens.size);
    pack_strip<A_PANEL, A_ORDER>(dlogits_by(own, 1, w.block), 0, width, 0, tokens.size, own.rows);
    each_tile(width, loss.hidden, tokens.size, [&](int64_t i, int64_t j, int64_t k, int64_t deep) {
        const int64_t rows = min64(MR, width - i);
        float* c = w.dweight + (v + i) * loss.hidden + j;
        if (!B_STAYS && tokens.first > 0 && j + 2 * NR <= loss.hidden) prefetch_tile(c + NR, loss.hidden, rows);
        micro_edge(micro_units(deep), kup, own.rows + i * kup + k / UNIT * A_PANEL, w.x_columns + j * kup + k / UNIT * B_PANEL, c,
                   loss.hidden, rows, min64(NR, loss.hidden - j), k > 0 || tokens.first > 0);
    });
}

static inline void put(const ratchet_tensor& t, int64_t at, float value) {
    if (t.dtype == RATCHET_BF16)
        static_cast<uint16_t*>(t.data)[at] = bf16_of_float(value);
    else
        static_cast<float*>(t.data)[at] = value;
}

// The threads' partial sums of dx, added in the order of the threads; those that had no block have none.
static void reduce_dx(const Loss& loss, const Work& w, Span tokens, int64_t i, int threads) {
    for (int64_t j = 0; j < loss.hidden; j += NR) {
        float sums[NR] = {};
        const int64_t at = ((i / MR * w.hidden_tiles + j / NR) * MR + i % MR) * NR, width = min64(NR, loss.hidden - j);
        for (int thread = 0; thread < threads; ++thread) {
            if (w.blocks * thread / threads == w.blocks * (thread + 1) / threads) continue;
            const float* part = own_of(w, w.own + thread * w.own_bytes).dx + at;
            for (int64_t c = 0; c < NR; ++c) sums[c] += part[c];
        }
        for (int64_t c = 0; c < width; ++c) put(loss.dx, (tokens.first + i) * loss.dx.stride[0] + j + c, sums[c]);
    }
}

static void round_block(const Loss& loss, const Work& w, int64_t index) {
    const int64_t v = index * w.block, width = min64(w.block, loss.vocabulary - v);
    if (loss.dweight.dtype == RATCHET_BF16)
        row_scale(lane(w.dweight + v * loss.hidden), width * loss.hidden, 1, 0, lane(static_cast<uint16_t*>(loss.dweight.data) + v * loss.hidden));
    if (loss.has_bias)
        for (int64_t j = v; j < v + width; ++j) put(loss.dbias, j, w.dbias[j]);
}

static void second_pass(const Loss& loss, const Work& w, const Own& own, Span tokens, int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
        dlogits_of(loss, w, own, tokens, index);
        if (loss.has_bias) add_dbias(loss, w, own, tokens, index);
        add_dx(loss, w, own, tokens, index, index == begin);
        add_dweight(loss, w, own, tokens, index);
        if (tokens.first + tokens.size == loss.tokens) round_block(loss, w, index);
    }
}

// Everything for one chunk; called by every thread of a team.
static void run_chunk(const Loss& loss, const Work& w, Span tokens, int thread, int threads) {
    const Own own = own_of(w, w.own + thread * w.own_bytes);
    const int64_t begin = w.blocks * thread / threads, end = w.blocks * (thread + 1) / threads;
    pack_together<A_PANEL, A_ORDER>(matrix_rows(loss.x), tokens.first, tokens.size, 0, loss.hidden, w.x_rows);
    if (loss.gradients) {
        Operand columns = matrix_columns(loss.x);
        pack_together<B_PANEL, Order::k_major>(columns, 0, loss.hidden, tokens.first, tokens.size, w.x_columns);
    }
#pragma omp barrier
    for (int64_t index = begin; index < end; ++index) first_pass(loss, w, own, tokens, index);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tokens.size; ++i) finish_row(loss, w, tokens, i);
    if (!loss.gradients) return;
    second_pass(loss, w, own, tokens, begin, end);
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tokens.size; ++i) reduce_dx(loss, w, tokens, i, threads);
}

static void widen_bias(const ratchet_tensor& bias, float* to) {
    for (int64_t j = 0; j < bias.size[0]; ++j)
        to[j] = bias.dtype == RATCHET_BF16 ? float_of_bf16(static_cast<const uint16_t*>(bias.data)[j]) : static_cast<const float*>(bias.data)[j];
}

static float run(const Loss& loss) {
    const int most = omp_get_max_threads();
    const Work w = plan(loss, most);
    if (loss.has_bias) widen_bias(loss.bias, w.bias);
#pragma omp parallel num_threads(most)
    {
        const MicroScope scope;
        for (int64_t first = 0; first < loss.tokens; first += w.chunk)
            run_chunk(loss, w, {first, min64(w.chunk, loss.tokens - first)}, omp_get_thread_num(), omp_get_num_threads());
        (void)scope;
    }
    double sum = 0;
    for (int64_t i = 0; i < loss.tokens; ++i) sum += w.row_loss[i];
    return static_cast<float>(sum / static_cast<double>(loss.counted));
}

static bool takes_dtype(const ratchet_tensor& t) { return t.dtype == RATCHET_F32 || t.dtype == RATCHET_BF16; }

static bool takes_matrix(const ratchet_tensor& t, int64_t rows, int64_t cols) {
    return t.ndim == 2 && takes_dtype(t) && t.size[0] == rows && t.size[1] == cols && (cols == 1 || t.stride[1] == 1);
}

static bool takes_vector(const ratchet_tensor& t, int64_t size) {
    return t.ndim == 1 && takes_dtype(t) && t.size[0] == size && ratchet_is_contiguous(&t);
}

// Every target is ignored or names a row of W; how many are not ignored.
static bool count_targets(Loss& loss) {
    for (int64_t i = 0; i < loss.tokens; ++i) {
        if (loss.target[i] == loss.ignore_index) continue;
        if (loss.target[i] < 0 || loss.target[i] >= loss.vocabulary) return false;
        ++loss.counted;
    }
    return true;
}

// Two fp32 operands need fp32 arithmetic, which the variants that pack pairs of bf16 lack.
static bool takes_inputs(const Loss& loss, const ratchet_tensor& target) {
    const bool sized = loss.tokens > 0 && loss.hidden > 0 && loss.vocabulary > 0;
    return sized && (UNIT == 1 || !loss.exact) && takes_matrix(loss.x, loss.tokens, loss.hidden) && takes_matrix(loss.weight, loss.vocabulary, loss.hidden) &&
           target.ndim == 1 && target.dtype == RATCHET_I64 && target.size[0] == loss.tokens && ratchet_is_contiguous(&target);
}

static bool takes_gradients(const Loss& loss) {
    const bool whole = ratchet_is_contiguous(&loss.dx) && ratchet_is_contiguous(&loss.dweight);
    return whole && takes_matrix(loss.dx, loss.tokens, loss.hidden) && takes_matrix(loss.dweight, loss.vocabulary, loss.hidden) &&
           (!loss.has_bias || takes_vector(loss.dbias, loss.vocabulary));
}

static void clear(const ratchet_tensor& t) {
    std::memset(t.data, 0, static_cast<std::size_t>(ratchet_numel(&t)) * (t.dtype == RATCHET_BF16 ? 2 : 4));
}

// The mean over no token is NaN, and moves nothing.
static float nothing_counted(const Loss& loss) {
    if (loss.gradients) {
        clear(loss.dx);
        clear(loss.dweight);
        if (loss.has_bias) clear(loss.dbias);
    }
    return NAN;
}

RATCHET_ENTRY linear_cross_entropy(const ratchet_tensor* t, int64_t count, const double* scalars, int64_t scalar_count) {
    if ((count != 5 && count != 8) || scalar_count != 2 || t[0].ndim != 2 || t[1].ndim != 2) return RATCHET_DECLINED;
    if (t[4].dtype != RATCHET_F32 || ratchet_numel(&t[4]) != 1 || !micro_available()) return RATCHET_DECLINED;
    Loss loss{};
    loss.x = t[0], loss.weight = t[1], loss.bias = t[2];
    loss.tokens = t[0].size[0], loss.hidden = t[0].size[1], loss.vocabulary = t[1].size[0];
    loss.target = static_cast<const int64_t*>(t[3].data);
    loss.ignore_index = static_cast<int64_t>(scalars[0]);
    loss.smoothing = static_cast<float>(scalars[1]);
    loss.has_bias = ratchet_numel(&t[2]) > 0;
    loss.gradients = count == 8;
    loss.exact = loss.x.dtype == RATCHET_F32 && loss.weight.dtype == RATCHET_F32;
    if (loss.gradients) loss.dx = t[5], loss.dweight = t[6], loss.dbias = t[7];
    if (!takes_inputs(loss, t[3]) || (loss.has_bias && !takes_vector(t[2], loss.vocabulary))) return RATCHET_DECLINED;
    if ((loss.gradients && !takes_gradients(loss)) || !count_targets(loss)) return RATCHET_DECLINED;
    try {
        *static_cast<float*>(t[4].data) = loss.counted == 0 ? nothing_counted(loss) : run(loss);
    } catch (const std::bad_alloc&) {
        return RATCHET_DECLINED;
    }
    return RATCHET_DONE;
}
