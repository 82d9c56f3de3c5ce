// RMSNorm and LayerNorm, with or without the residual add, forward and backward.
//
// Forward:   [x, (residual), weight, (bias), y, (h)],  scalars [eps]
//            h = x + residual, rounded to h's dtype;  y = norm(h) * weight (+ bias)
// Backward:  [grad_y, (grad_h), h, weight, dh, dweight, (dbias)],  scalars [eps]
// Without the add there is no residual, h or grad_h. An empty bias or grad_h stands for none.
// Every sum is fp32; the inverse deviation is computed again in the backward, from rows in cache.
// Rows are read once into an fp32 buffer that stays in L1.
#pragma once
#include "vec.h"
#include <math.h>

struct Statistics {
    float mean, inverse;
};

template <bool CENTRED>
static inline Statistics statistics(const float* row, int64_t width, float eps) {
    float mean = 0.f;
    if (CENTRED) {
        mean = sum_over(width, [&](vf sum, int64_t i, int64_t n) {
                   return n >= LANES ? sum + vload32(row + i) : sum + vload32_n(row + i, n);
               }) / (float)width;
    }
    // Lanes beyond the row must add nothing, so the mean is not taken from them.
    float square = sum_over(width, [&](vf sum, int64_t i, int64_t n) {
        if (n >= LANES) {
            vf x = vload32(row + i) - vset(mean);
            return vfma(x, x, sum);
        }
        float rest = 0.f;
        for (int64_t k = 0; k < n; ++k) rest += (row[i + k] - mean) * (row[i + k] - mean);
        vf only = vset(0.f);
        only[0] = rest;
        return sum + only;
    });
    return Statistics{mean, 1.f / sqrtf(square / (float)width + eps)};
}

// A buffer of floats that begins on a cache line; small ones stand on the stack.
struct Buffer {
    alignas(64) float fixed[4096];
    float* data;

    explicit Buffer(int64_t count) {
        size_t bytes = ((size_t)count * 4 + 63) / 64 * 64;
        data = count <= 4096 ? fixed : (float*)aligned_alloc(64, bytes);
    }
    ~Buffer() {
        if (data != fixed) free(data);
    }
    Buffer(const Buffer&) = delete;
};

static inline bool is_vector(const ratchet_tensor* t, int64_t width) {
    return is_lane(t) && t->ndim == 1 && t->size[0] == width && (width < 2 || t->stride[0] == 1);
}
static inline bool is_optional_vector(const ratchet_tensor* t, int64_t width) {
    return is_lane(t) && (ratchet_numel(t) == 0 || is_vector(t, width));
}
static inline bool same_rows(const Rows& a, const Rows& b) {
    return a.count == b.count && a.width == b.width;
}

template <bool CENTRED, bool ADD>
static int64_t forward(const ratchet_tensor* t, int64_t count, const double* s, int64_t scalars) {
    if (count != 3 + CENTRED + 2 * ADD || scalars < 1) return RATCHET_DECLINED;
    const ratchet_tensor* weight_t = t + 1 + ADD;
    const ratchet_tensor* bias_t = CENTRED ? weight_t + 1 : nullptr;
    const ratchet_tensor* y_t = weight_t + 1 + CENTRED;
    Rows x, r, y, h;
    if (!rows_of(t, &x) || !rows_of(y_t, &y) || !same_rows(x, y)) return RATCHET_DECLINED;
    if (!is_vector(weight_t, x.width)) return RATCHET_DECLINED;
    if (CENTRED && !is_optional_vector(bias_t, x.width)) return RATCHET_DECLINED;
    if (ADD && (!rows_of(t + 1, &r) || !rows_of(y_t + 1, &h) || !same_rows(x, r) ||
                !same_rows(x, h)))
        return RATCHET_DECLINED;
    const int64_t width = x.width;
    if (x.count == 0 || width == 0) return RATCHET_DONE;
    const float eps = (float)s[0];
    const Lane weight = lane_of(weight_t);
    const bool biased = CENTRED && ratchet_numel(bias_t) > 0;
    const Lane bias = biased ? lane_of(bias_t) : weight;
#pragma omp parallel num_threads(threads_for(x.count * width))
    {
        Buffer buffer(width);
        float* row = buffer.data;
#pragma omp for schedule(static)
        for (int64_t k = 0; k < x.count; ++k) {
            const Lane in = x.row(k), out = y.row(k);
            if (ADD) {
                const Lane residual = r.row(k), sum = h.row(k);
                for (int64_t i = 0; i < width; i += LANES) {
                    const int64_t n = width - i;
                    vf v = in.load(i, n) + residual.load(i, n);
                    sum.store(i, v, n);
                    if (sum.bf16) v = vround_bf16(v);
                    if (n >= LANES) vstore32(row + i, v);
                    else vstore32_n(row + i, v, n);
                }
            } else {
                for (int64_t i = 0; i < width; i += LANES) {
                    const int64_t n = width - i;
                    if (n >= LANES) vstore32(row + i, in.load(i));
                    else vstore32_n(row + i, in.load(i, n), n);
                }
            }
            const Statistics found = statistics<CENTRED>(row, width, eps);
            const vf mean = vset(found.mean), inverse = vset(found.inverse);
            for (int64_t i = 0; i < width; i += LANES) {
                const int64_t n = width - i;
                vf v = n >= LANES ? vload32(row + i) : vload32_n(row + i, n);
                if (CENTRED) v = v - mean;
                v = v * inverse * weight.load(i, n);
                if (biased) v = v + bias.load(i, n);
                out.store(i, v, n);
            }
        }
    }
    return RATCHET_DONE;
}

// Adds `from` into `into` and clears `from`.
static inline void flush(float* into, float* from, int64_t padded) {
    for (int64_t i = 0; i < padded; i += LANES) {
        vstore32(into + i, vload32(into + i) + vload32(from + i));
        vstore32(from + i, vset(0.f));
    }
}

// Rows whose weight gradients are summed before they join the thread's sum: sums of sums lose less.
static const int64_t BLOCK_ROWS = 64;

template <bool CENTRED, bool ADD>
static int64_t backward(const ratchet_tensor* t, int64_t count, const double* s, int64_t scalars) {
    if (count != 5 + CENTRED + ADD || scalars < 1) return RATCHET_DECLINED;
    const ratchet_tensor* h_t = t + 1 + ADD;
    const ratchet_tensor* weight_t = h_t + 1;
    const ratchet_tensor* dweight_t = h_t + 3;
    const ratchet_tensor* dbias_t = CENTRED ? h_t + 4 : nullptr;
    Rows g, gh, h, dh;
    if (!rows_of(t, &g) || !rows_of(h_t, &h) || !rows_of(h_t + 2, &dh)) return RATCHET_DECLINED;
    if (!same_rows(g, h) || !same_rows(g, dh)) return RATCHET_DECLINED;
    const bool through = ADD && ratchet_numel(t + 1) > 0;
    if (through && (!rows_of(t + 1, &gh) || !same_rows(g, gh))) return RATCHET_DECLINED;
    const int64_t width = h.width;
    if (!is_vector(weight_t, width) || !is_vector(dweight_t, width)) return RATCHET_DECLINED;
    if (CENTRED && !is_optional_vector(dbias_t, width)) return RATCHET_DECLINED;
    if (width == 0) return RATCHET_DONE;
    const float eps = (float)s[0];
    const Lane weight = lane_of(weight_t);
    const bool biased = CENTRED && ratchet_numel(dbias_t) > 0;
    const int64_t padded = (width + 15) / 16 * 16;  // whole cache lines
    const int64_t sums = 1 + biased;
    int threads = threads_for(h.count * width);
    float* partial = (float*)aligned_alloc(64, (size_t)(threads * sums * padded) * 4);
    if (partial == nullptr) return RATCHET_DECLINED;
    memset(partial, 0, (size_t)(threads * sums * padded) * 4);
#pragma omp parallel num_threads(threads)
    {
        const int64_t me = omp_get_thread_num(), team = omp_get_num_threads();
        Buffer buffer((2 + sums) * padded);
        float *row = buffer.data, *grad = row + padded, *block = grad + padded;
        float* total = partial + me * sums * padded;
        memset(row, 0, (size_t)((2 + sums) * padded) * 4);
        const int64_t first = h.count * me / team, end = h.count * (me + 1) / team;
        for (int64_t k = first; k < end; ++k) {
            const Lane in = h.row(k), gy = g.row(k), out = dh.row(k);
            for (int64_t i = 0; i < width; i += LANES) vstore32(row + i, in.load(i, width - i));
            const Statistics found = statistics<CENTRED>(row, width, eps);
            const vf mean = vset(found.mean), inverse = vset(found.inverse);
            vf dot = vset(0.f), sum = vset(0.f);
            for (int64_t i = 0; i < width; i += LANES) {
                const int64_t n = width - i;
                const vf dy = gy.load(i, n);
                const vf hat = (vload32(row + i) - mean) * inverse;
                vstore32(block + i, vfma(dy, hat, vload32(block + i)));
                if (biased) vstore32(block + padded + i, vload32(block + padded + i) + dy);
                const vf scaled = dy * weight.load(i, n);
                dot = vfma(scaled, hat, dot);
                if (CENTRED) sum = sum + scaled;
                vstore32(row + i, hat);
                vstore32(grad + i, scaled);
            }
            const vf along = vset(vsum(dot) / (float)width);
            const vf level = vset(CENTRED ? vsum(sum) / (float)width : 0.f);
            for (int64_t i = 0; i < width; i += LANES) {
                const int64_t n = width - i;
                vf d = vload32(grad + i) - vload32(row + i) * along;
                if (CENTRED) d = d - level;
                d = d * inverse;
                if (through) d = d + gh.row(k).load(i, n);
                out.store(i, d, n);
            }
            if ((k - first + 1) % BLOCK_ROWS == 0) flush(total, block, sums * padded);
        }
        flush(total, block, sums * padded);
    }
    for (int64_t i = 0; i < width; i += LANES) {
        for (int64_t which = 0; which < sums; ++which) {
            vf sum = vset(0.f);
            for (int64_t k = 0; k < threads; ++k)
                sum = sum + vload32(partial + (k * sums + which) * padded + i);
            lane_of(which ? dbias_t : dweight_t).store(i, sum, width - i);
        }
    }
    free(partial);
    return RATCHET_DONE;
}

#define NORM_ENTRY(NAME, CALL)                                                              \
    RATCHET_ENTRY NAME(const ratchet_tensor* t, int64_t n, const double* s, int64_t m) {     \
        return CALL(t, n, s, m);                                                            \
    }
