// y = act(gate) * up, and its gradients, in one pass. act is SiLU, GELU or GELU by tanh.
//
// Forward:   [gate, up, y],                     scalars [kind]
// Backward:  [grad, gate, up, dgate, dup],      scalars [kind]       kind 0 silu, 1 gelu, 2 gelu_tanh
#include "vec_math.h"

// act(x) = x * share(x); the derivative is share + x * density.
struct Gate {
    vf value, slope;
};

// In both tanh and logistic form x * s(2u) with s the logistic function: 0.5 (1 + tanh u) = s(2u).
template <int KIND>
static inline Gate gate_of(vf x, bool with_slope) {
    const vf one = vset(1.f);
    if (KIND == 0) {
        if (!with_slope) return Gate{x * vlogistic(x), one};
        const Logistic l = vlogistic_pair(x);
        return Gate{x * l.s, l.s * vfma(vclamp(x, -100.f, 100.f), l.rest, one)};
    }
    if (KIND == 1) {
        const vf s = vset(0.5f) * (one + verf(x * vset(0.70710678f)));
        const vf density = with_slope ? vset(0.39894228f) * vexp(vset(-0.5f) * x * x) : s;
        return Gate{x * s, vfma(vclamp(x, -20.f, 20.f), density, s)};
    }
    const vf square = x * x;
    const vf twice = vset(1.59576912f) * x * vfma(square, vset(0.044715f), one);
    if (!with_slope) return Gate{x * vlogistic(twice), one};
    const Logistic l = vlogistic_pair(twice);
    // The cubic overflows long after s (1 - s) has vanished; the clamp keeps 0 * inf away.
    const vf near = vclamp(x, -20.f, 20.f);
    const vf rate = vset(1.59576912f) * vfma(near * near, vset(0.134145f), one);
    return Gate{x * l.s, vfma(near * rate, l.s * l.rest, l.s)};
}

static inline bool fits(const Rows& a, const Rows& b) {
    return a.count == b.count && a.width == b.width;
}

template <int KIND>
static void forward(const Rows& g, const Rows& u, const Rows& y) {
#pragma omp parallel for schedule(static) num_threads(threads_for(g.count* g.width))
    for (int64_t k = 0; k < g.count; ++k) {
        const Lane gate = g.row(k), up = u.row(k), out = y.row(k);
        for (int64_t i = 0; i < g.width; i += LANES) {
            const int64_t n = g.width - i;
            out.store(i, gate_of<KIND>(gate.load(i, n), false).value * up.load(i, n), n);
        }
    }
}

template <int KIND>
static void backward(const Rows& dy, const Rows& g, const Rows& u, const Rows& dg, const Rows& du) {
#pragma omp parallel for schedule(static) num_threads(threads_for(g.count* g.width))
    for (int64_t k = 0; k < g.count; ++k) {
        const Lane grad = dy.row(k), gate = g.row(k), up = u.row(k);
        const Lane dgate = dg.row(k), dup = du.row(k);
        for (int64_t i = 0; i < g.width; i += LANES) {
            const int64_t n = g.width - i;
            const vf d = grad.load(i, n);
            const Gate found = gate_of<KIND>(gate.load(i, n), true);
            dgate.store(i, d * up.load(i, n) * found.slope, n);
            dup.store(i, d * found.value, n);
        }
    }
}

RATCHET_ENTRY gated_activation_forward(const ratchet_tensor* t, int64_t count, const double* s,
                                       int64_t scalars) {
    Rows g, u, y;
    if (count != 3 || scalars < 1) return RATCHET_DECLINED;
    if (!rows_of(t, &g) || !rows_of(t + 1, &u) || !rows_of(t + 2, &y)) return RATCHET_DECLINED;
    if (!fits(g, u) || !fits(g, y)) return RATCHET_DECLINED;
    switch ((int)s[0]) {
        case 0: forward<0>(g, u, y); return RATCHET_DONE;
        case 1: forward<1>(g, u, y); return RATCHET_DONE;
        case 2: forward<2>(g, u, y); return RATCHET_DONE;
    }
    return RATCHET_DECLINED;
}

RATCHET_ENTRY gated_activation_backward(const ratchet_tensor* t, int64_t count, const double* s,
                                        int64_t scalars) {
    Rows dy, g, u, dg, du;
    if (count != 5 || scalars < 1) return RATCHET_DECLINED;
    if (!rows_of(t, &dy) || !rows_of(t + 1, &g) || !rows_of(t + 2, &u)) return RATCHET_DECLINED;
    if (!rows_of(t + 3, &dg) || !rows_of(t + 4, &du)) return RATCHET_DECLINED;
    if (!fits(g, dy) || !fits(g, u) || !fits(g, dg) || !fits(g, du)) return RATCHET_DECLINED;
    switch ((int)s[0]) {
        case 0: backward<0>(dy, g, u, dg, du); return RATCHET_DONE;
        case 1: backward<1>(dy, g, u, dg, du); return RATCHET_DONE;
        case 2: backward<2>(dy, g, u, dg, du); return RATCHET_DONE;
    }
    return RATCHET_DECLINED;
}
