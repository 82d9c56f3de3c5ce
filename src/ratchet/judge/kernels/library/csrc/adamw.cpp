// AdamW over many tensors in one pass over memory, and the sum of squares that clipping needs first.
//
// gradient_square_sum: [grad ..., out fp32 [1]]
// adamw_step:          [grad, exp_avg, exp_avg_sq, weight, copy] for each parameter, all in place
//                      scalars [lr, beta1, beta2, eps, weight_decay, step, coefficient, zero]
//
// grad is fp32 or bf16 and is multiplied by `coefficient` first (1 without clipping); the moments are
// fp32; weight is fp32 or bf16; copy, empty or bf16, receives the rounded weight. With `zero` the
// gradient is cleared while its line is in cache. Arithmetic as in torch.optim.AdamW
// (arXiv:1711.05101, algorithm 2): decay, moments, bias-corrected step.
#include "vec.h"
#include <math.h>

// The five tensors of a parameter are walked as flat memory, so they must lie alike.
static inline bool is_dense(const ratchet_tensor* t) {
    int64_t last = 0, elements = 1;
    for (int64_t d = 0; d < t->ndim; ++d) {
        if (t->size[d] > 1 && t->stride[d] < 1) return false;
        last += (t->size[d] - 1) * t->stride[d];
        elements *= t->size[d];
    }
    return elements == 0 || last + 1 == elements;
}

static inline bool alike(const ratchet_tensor* a, const ratchet_tensor* b) {
    if (a->ndim != b->ndim) return false;
    for (int64_t d = 0; d < a->ndim; ++d) {
        if (a->size[d] != b->size[d]) return false;
        if (a->size[d] > 1 && a->stride[d] != b->stride[d]) return false;
    }
    return true;
}

// Pieces of many tensors, so that threads share the work whatever the sizes of the tensors.
struct Piece {
    int64_t tensor, first, count;
};

struct Pieces {
    Piece* list;
    int64_t count;

    Pieces(const ratchet_tensor* t, int64_t tensors, int64_t every, int64_t size)
        : list(nullptr), count(0) {
        for (int64_t k = 0; k < tensors; ++k)
            count += (ratchet_numel(t + k * every) + size - 1) / size;
        list = (Piece*)malloc((size_t)(count + 1) * sizeof(Piece));
        int64_t at = 0;
        for (int64_t k = 0; list && k < tensors; ++k) {
            const int64_t n = ratchet_numel(t + k * every);
            for (int64_t first = 0; first < n; first += size)
                list[at++] = Piece{k * every, first, n - first < size ? n - first : size};
        }
    }
    ~Pieces() { free(list); }
    Pieces(const Pieces&) = delete;
};

// fp32 sums of 64 elements, then double: as accurate as a pairwise sum, and the same for any number
// of threads.
static const int64_t SUM_PIECE = 4096;

static double square_sum(Lane g, int64_t count) {
    double total = 0.0;
    for (int64_t first = 0; first < count; first += 1024) {
        const int64_t n = count - first < 1024 ? count - first : 1024;
        const Lane part = g.at(first);
        total += (double)sum_over(n, [&](vf sum, int64_t i, int64_t left) {
            const vf x = part.load(i, left);
            return vfma(x, x, sum);
        });
    }
    return total;
}

RATCHET_ENTRY gradient_square_sum(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    if (count < 1 || t[count - 1].dtype != RATCHET_F32 || ratchet_numel(t + count - 1) != 1)
        return RATCHET_DECLINED;
    for (int64_t k = 0; k < count - 1; ++k)
        if (!is_lane(t + k) || !is_dense(t + k)) return RATCHET_DECLINED;
    Pieces pieces(t, count - 1, 1, SUM_PIECE);
    double* sums = (double*)malloc((size_t)(pieces.count + 1) * sizeof(double));
    if (!pieces.list || !sums) {
        free(sums);
        return RATCHET_DECLINED;
    }
#pragma omp parallel for schedule(dynamic, 64) num_threads(threads_for(pieces.count* SUM_PIECE))
    for (int64_t k = 0; k < pieces.count; ++k) {
        const Piece piece = pieces.list[k];
        sums[k] = square_sum(lane_of(t + piece.tensor).at(piece.first), piece.count);
    }
    double total = 0.0;
    for (int64_t k = 0; k < pieces.count; ++k) total += sums[k];
    free(sums);
    *(float*)t[count - 1].data = (float)total;
    return RATCHET_DONE;
}

struct Rule {
    vf coefficient, decay, first, second_keep, second, inverse_root, eps, negative_step;
    bool zero;
};

static Rule rule_of(const double* s) {
    const double lr = s[0], beta1 = s[1], beta2 = s[2], step = s[5];
    const double correction1 = 1.0 - pow(beta1, step), correction2 = 1.0 - pow(beta2, step);
    Rule rule;
    rule.coefficient = vset((float)s[6]);
    rule.decay = vset((float)(1.0 - lr * s[4]));
    rule.first = vset((float)(1.0 - beta1));
    rule.second_keep = vset((float)beta2);
    rule.second = vset((float)(1.0 - beta2));
    rule.inverse_root = vset((float)(1.0 / sqrt(correction2)));
    rule.eps = vset((float)s[3]);
    rule.negative_step = vset((float)(-lr / correction1));
    rule.zero = s[7] != 0.0;
    return rule;
}

static inline vf update_lanes(const Rule& rule, Lane g, float* m, float* v, Lane w, int64_t i,
                              int64_t n) {
    const Lane m_lane = {(char*)m, false}, v_lane = {(char*)v, false};
    const vf grad = g.load(i, n) * rule.coefficient;
    const vf m_old = m_lane.load(i, n);
    const vf m_new = vfma(grad - m_old, rule.first, m_old);
    const vf v_new = vfma(grad * grad, rule.second, v_lane.load(i, n) * rule.second_keep);
    const vf denominator = vfma(vsqrt(v_new), rule.inverse_root, rule.eps);
    const vf moved = vfma(rule.negative_step, m_new / denominator, w.load(i, n) * rule.decay);
    m_lane.store(i, m_new, n);
    v_lane.store(i, v_new, n);
    w.store(i, moved, n);
    if (rule.zero) g.store(i, vset(0.f), n);
    return moved;
}

static void update(const Rule& rule, const ratchet_tensor* t, int64_t first, int64_t count) {
    const Lane g = lane_of(t).at(first), w = lane_of(t + 3).at(first);
    float* m = (float*)t[1].data + first;
    float* v = (float*)t[2].data + first;
    if (ratchet_numel(t + 4) == 0) {
        for (int64_t i = 0; i < count; i += LANES) update_lanes(rule, g, m, v, w, i, count - i);
        return;
    }
    const Lane copy = lane_of(t + 4).at(first);
    int64_t i = 0;
#if defined(VEC_AVX512)
    // The copy is only written: a whole line at once goes past the cache, unread.
    if (copy.bf16 && (uintptr_t)copy.data % 64 == 0) {
        for (; i + 2 * LANES <= count; i += 2 * LANES) {
            const __m256i low = (__m256i)vnarrow(update_lanes(rule, g, m, v, w, i, LANES));
            const __m256i high =
                (__m256i)vnarrow(update_lanes(rule, g, m, v, w, i + LANES, LANES));
            const __m512i line = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            _mm512_stream_si512((__m512i*)((uint16_t*)copy.data + i), line);
        }
        _mm_sfence();
    }
#endif
    for (; i < count; i += LANES)
        copy.store(i, update_lanes(rule, g, m, v, w, i, count - i), count - i);
}

static const int64_t UPDATE_PIECE = 16384;

RATCHET_ENTRY adamw_step(const ratchet_tensor* t, int64_t count, const double* s, int64_t scalars) {
    if (count % 5 != 0 || scalars < 8) return RATCHET_DECLINED;
    for (int64_t k = 0; k < count; k += 5) {
        const ratchet_tensor *g = t + k, *m = g + 1, *v = g + 2, *w = g + 3, *copy = g + 4;
        if (!is_lane(g) || !is_lane(w) || !is_dense(w) || !is_lane(copy)) return RATCHET_DECLINED;
        if (m->dtype != RATCHET_F32 || v->dtype != RATCHET_F32) return RATCHET_DECLINED;
        if (!alike(g, w) || !alike(m, w) || !alike(v, w)) return RATCHET_DECLINED;
        if (ratchet_numel(copy) > 0 && !alike(copy, w)) return RATCHET_DECLINED;
    }
    const Rule rule = rule_of(s);
    Pieces pieces(t, count / 5, 5, UPDATE_PIECE);
    if (!pieces.list) return RATCHET_DECLINED;
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads_for(pieces.count* UPDATE_PIECE))
    for (int64_t k = 0; k < pieces.count; ++k) {
        const Piece piece = pieces.list[k];
        update(rule, t + piece.tensor, piece.first, piece.count);
    }
    return RATCHET_DONE;
}
