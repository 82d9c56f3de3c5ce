// exp, the logistic function and the normal distribution of sixteen fp32 lanes.
#pragma once
#include "vec.h"

// e^x: x = n ln2 + r with |r| <= ln2/2 (Cody and Waite, two-part ln2), Taylor to r^7. Within 2 ulp;
// overflow gives inf, underflow 0, NaN stays.
static inline vf vexp(vf x) {
    x = vclamp(x, -104.f, 89.f);
    const vf n = vround(x * vset(1.44269504f));
    vf r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.98412698e-4f);
    p = vfma(p, r, vset(1.38888889e-3f));
    p = vfma(p, r, vset(8.33333333e-3f));
    p = vfma(p, r, vset(4.16666667e-2f));
    p = vfma(p, r, vset(1.66666667e-1f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, r * r, r) + vset(1.f);
    return vscale(p, n);
}

// 1 / (1 + e^-x)
static inline vf vlogistic(vf x) { return vset(1.f) / (vset(1.f) + vexp(-x)); }

// The logistic function and what is left to 1, each with small relative error: 1 - s would cancel.
struct Logistic {
    vf s, rest;
};
static inline Logistic vlogistic_pair(vf x) {
    const vf e = vexp(-vclamp(x, -80.f, 80.f));
    const vf s = vset(1.f) / (vset(1.f) + e);
    return Logistic{s, e * s};
}

// erf(x), both branches of the minimax polynomials by N. Juffa
// (https://stackoverflow.com/a/35148199): within 1 ulp with fused multiply-add.
static inline vf verf(vf x) {
    // Beyond 4 erf is 1 in fp32, and the polynomial would turn around. A NaN stays.
    const vf t = vclamp(vabs(x), 0.f, 4.f), s = t * t;
    vf r = vfma(vset(-1.72853470e-5f), t, vset(3.83197126e-4f));
    const vf u = vfma(vset(-3.88396438e-3f), t, vset(2.42546219e-2f));
    r = vfma(r, s, u);
    r = vfma(r, t, vset(-1.06777877e-1f));
    r = vfma(r, t, vset(-6.34846687e-1f));
    r = vfma(r, t, vset(-1.28717512e-1f));
    r = vfma(r, t, -t);
    const vf large = vfrom_bits(vbits(vset(1.f) - vexp(r)) | (vbits(x) & 0x80000000u));
    vf q = vset(-5.96761703e-4f);
    q = vfma(q, s, vset(4.99119423e-3f));
    q = vfma(q, s, vset(-2.67681349e-2f));
    q = vfma(q, s, vset(1.12819925e-1f));
    q = vfma(q, s, vset(-3.76125336e-1f));
    q = vfma(q, s, vset(1.28379166e-1f));
    const vf small = vfma(q, x, x);
    return vif_less(t, 0.927734375f, small, large);
}
