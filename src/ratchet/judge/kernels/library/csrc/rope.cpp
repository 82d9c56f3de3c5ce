// Rotary embedding, halves convention: y = x * cos + rotate_half(x) * sin, and its transpose.
//
// [x, cos, sin, y]:  x, y  [B, H, T, D] of any strides with D contiguous;  cos, sin  [T, D] or [B, T, D]
// rope_forward rotates, rope_backward applies the transposed rotation to a gradient.
#include "vec.h"

static inline bool is_heads(const ratchet_tensor* t) {
    return is_lane(t) && t->ndim == 4 && (t->size[3] == 1 || t->stride[3] == 1);
}

static inline bool is_table(const ratchet_tensor* table, const ratchet_tensor* x) {
    const int64_t n = table->ndim;
    if (!is_lane(table) || (n != 2 && n != 3)) return false;
    if (table->size[n - 1] != x->size[3] || table->size[n - 2] != x->size[2]) return false;
    if (n == 3 && table->size[0] != 1 && table->size[0] != x->size[0]) return false;
    return table->size[n - 1] == 1 || table->stride[n - 1] == 1;
}

static inline Lane table_row(const ratchet_tensor* table, int64_t b, int64_t t) {
    const int64_t n = table->ndim;
    const int64_t batch = n == 3 && table->size[0] > 1 ? b * table->stride[0] : 0;
    return lane_of(table).at(batch + t * table->stride[n - 2]);
}

static inline Lane head_row(const ratchet_tensor* x, int64_t b, int64_t h, int64_t t) {
    return lane_of(x).at(b * x->stride[0] + h * x->stride[1] + t * x->stride[2]);
}

template <bool TRANSPOSED>
static inline void rotate(Lane x, Lane cos, Lane sin, Lane y, int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t n = half - i;
        const vf a = x.load(i, n), b = x.at(half).load(i, n);
        const vf ca = cos.load(i, n), cb = cos.at(half).load(i, n);
        const vf sa = sin.load(i, n), sb = sin.at(half).load(i, n);
        y.store(i, TRANSPOSED ? vfma(b, sb, a * ca) : vfma(-b, sa, a * ca), n);
        y.at(half).store(i, TRANSPOSED ? vfma(-a, sa, b * cb) : vfma(a, sb, b * cb), n);
    }
}

template <bool TRANSPOSED>
static int64_t rope(const ratchet_tensor* t, int64_t count) {
    if (count != 4 || !is_heads(t) || !is_heads(t + 3)) return RATCHET_DECLINED;
    const ratchet_tensor *x = t, *cos = t + 1, *sin = t + 2, *y = t + 3;
    if (memcmp(x->size, y->size, 4 * sizeof(int64_t)) != 0) return RATCHET_DECLINED;
    if (!is_table(cos, x) || !is_table(sin, x) || x->size[3] % 2) return RATCHET_DECLINED;
    const int64_t batch = x->size[0], heads = x->size[1], length = x->size[2], half = x->size[3] / 2;
    // A token's heads share one row of the tables, and in [B, T, H, D] memory lie side by side.
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_for(ratchet_numel(x)))
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t p = 0; p < length; ++p) {
            const Lane c = table_row(cos, b, p), s = table_row(sin, b, p);
            for (int64_t h = 0; h < heads; ++h)
                rotate<TRANSPOSED>(head_row(x, b, h, p), c, s, head_row(y, b, h, p), half);
        }
    return RATCHET_DONE;
}

RATCHET_ENTRY rope_forward(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    return rope<false>(t, count);
}

RATCHET_ENTRY rope_backward(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    return rope<true>(t, count);
}
