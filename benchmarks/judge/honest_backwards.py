"""Handwritten backward passes of the suite's problems, in another order of operations than torch's.

They recompute values that torch keeps, sum in chunks or from the end, and use other algebra. They
therefore test bounds that torch's own reference can never miss.
"""

from __future__ import annotations

from collections.abc import Iterator

from honest_case import Honest

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem

HEAD = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>
struct tensor { void* data; int64_t dtype, ndim, size[6], stride[6]; };
typedef int64_t I;
typedef std::vector<float> F;
static I place(const tensor& t, I a, I b, I c, I d) {
    return a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
}
static float get(const tensor& t, I a, I b = 0, I c = 0, I d = 0) {
    const I at = place(t, a, b, c, d);
    if (t.dtype == 0) return ((const float*)t.data)[at];
    const uint32_t high = (uint32_t)((const uint16_t*)t.data)[at] << 16;
    float value;
    std::memcpy(&value, &high, 4);
    return value;
}
static void put(const tensor& t, float value, I a, I b = 0, I c = 0, I d = 0) {
    const I at = place(t, a, b, c, d);
    if (t.dtype == 0) { ((float*)t.data)[at] = value; return; }
    uint32_t all;
    std::memcpy(&all, &value, 4);
    ((uint16_t*)t.data)[at] = (uint16_t)((all + 0x7fff + ((all >> 16) & 1)) >> 16);
}
static I whole(const tensor& t, I a, I b = 0) { return ((const I*)t.data)[place(t, a, b, 0, 0)]; }
static float chunks(const F& v) {  // from the end, 37 at a time
    float sum = 0;
    for (I end = (I)v.size(); end > 0; end -= 37) {
        float part = 0;
        for (I i = end; i-- > std::max<I>(0, end - 37);) part += v[i];
        sum += part;
    }
    return sum;
}
#define ENTRY extern "C" int64_t answer(const tensor* t, int64_t, const double* s, int64_t)
#define ALL(i, n) for (I i = 0; i < (n); ++i)
"""

SOFTMAX = r"""
ENTRY {  // the largest, the sum and the product with grad from one pass that rescales as it goes
    const I rows = t[1].size[0], n = t[1].size[1];
    ALL(r, rows) {
        float top = -INFINITY, sum = 0, dot = 0;
        ALL(i, n) {
            const float x = get(t[1], r, i), next = std::max(top, x);
            const float old = std::exp(top - next), one = std::exp(x - next);
            sum = sum * old + one;
            dot = dot * old + one * get(t[0], r, i);
            top = next;
        }
        ALL(i, n) put(t[2], std::exp(get(t[1], r, i) - top) / sum * (get(t[0], r, i) - dot / sum), r, i);
    }
    return 0;
}
"""  # noqa: E501
LOG_SOFTMAX = r"""
ENTRY {
    const I rows = t[1].size[0], n = t[1].size[1];
    #pragma omp parallel for
    ALL(r, rows) {
        float top = get(t[1], r, 0);
        ALL(i, n) top = std::max(top, get(t[1], r, i));
        F power(n), grad(n);
        ALL(i, n) power[i] = std::exp(get(t[1], r, i) - top), grad[i] = get(t[0], r, i);
        const float share = chunks(grad) / chunks(power);
        ALL(i, n) put(t[2], grad[i] - power[i] * share, r, i);
    }
    return 0;
}
"""
CLASSES = r"""
ENTRY {  // grad, logits, targets
    const I rows = t[1].size[0], n = t[1].size[1];
    const float smooth = SMOOTH, z = Z;
    ALL(r, rows) {
        float top = get(t[1], r, n - 1);
        ALL(i, n) top = std::max(top, get(t[1], r, i));
        F power(n);
        ALL(i, n) power[i] = std::exp(get(t[1], r, i) - top);
        const float total = top + std::log(chunks(power)), grad = get(t[0], r);
        ALL(i, n) {
            const float share = std::exp(get(t[1], r, i) - total) * (1 + 2 * z * total);
            put(t[3], grad * (share - smooth / n - (i == whole(t[2], r) ? 1 - smooth : 0)), r, i);
        }
    }
    return 0;
}
"""
DISTILLED = r"""
ENTRY {  // grad, student, teacher: the temperature squared over itself
    const I rows = t[1].size[0], n = t[1].size[1];
    const float heat = (float)s[0];
    ALL(r, rows) {
        F a(n), b(n);
        float top_a = -INFINITY, top_b = -INFINITY;
        ALL(i, n) top_a = std::max(top_a, get(t[1], r, i)), top_b = std::max(top_b, get(t[2], r, i));
        ALL(i, n) a[i] = std::exp((get(t[1], r, i) - top_a) / heat);
        ALL(i, n) b[i] = std::exp((get(t[2], r, i) - top_b) / heat);
        const float sum_a = chunks(a), sum_b = chunks(b), grad = get(t[0], r) * heat;
        ALL(i, n) put(t[3], grad * (a[i] / sum_a - b[i] / sum_b), r, i);
    }
    return 0;
}
"""  # noqa: E501
GELU = r"""
ENTRY {
    const I rows = t[1].size[0], n = t[1].size[1];
    ALL(i, n) ALL(r, rows) {
        const float x = get(t[1], r, i), below = 0.5f * std::erfc(-x * 0.70710678f);
        const float slope = below + x * 0.39894228f * std::exp(-0.5f * x * x);
        put(t[2], get(t[0], r, i) * slope, r, i);
    }
    return 0;
}
"""
BIAS_GELU = r"""
ENTRY {  // column by column, rows from the end
    const I rows = t[1].size[0], n = t[1].size[1];
    #pragma omp parallel for
    ALL(i, n) {
        float sum = 0;
        for (I r = rows; r-- > 0;) {
            const float x = get(t[1], r, i) + get(t[2], i), below = 0.5f * std::erfc(-x * 0.70710678f);
            const float d = get(t[0], r, i) * (below + x * 0.39894228f * std::exp(-0.5f * x * x));
            put(t[3], d, r, i);
            sum += d;
        }
        put(t[4], sum, i);
    }
    return 0;
}
"""  # noqa: E501
SWIGLU = r"""
ENTRY {
    const I rows = t[0].size[0], n = t[0].size[1];
    ALL(r, rows) ALL(i, n) {
        const float gate = get(t[1], r, i), up = get(t[1], r, n + i), grad = get(t[0], r, i);
        const float open = 1 / (1 + std::exp(-gate)), shut = 1 / (1 + std::exp(gate));
        put(t[2], grad * up * open * (1 + gate * shut), r, i);
        put(t[2], grad * gate * open, r, n + i);
    }
    return 0;
}
"""
EMBEDDING = r"""
ENTRY {  // sorted by word, each word's rows added up from the last
    const I tokens = t[0].size[0], n = t[0].size[1];
    std::vector<I> order(tokens);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](I a, I b) {
        return whole(t[1], a) != whole(t[1], b) ? whole(t[1], a) < whole(t[1], b) : a > b;
    });
    ALL(w, t[2].size[0]) ALL(i, n) put(t[2], 0, w, i);
    for (I k = 0; k < tokens;) {
        const I word = whole(t[1], order[k]);
        F sum(n);
        for (; k < tokens && whole(t[1], order[k]) == word; ++k)
            ALL(i, n) sum[i] += get(t[0], order[k], i);
        ALL(i, n) put(t[2], sum[i], word, i);
    }
    return 0;
}
"""
BAGS = r"""
ENTRY {  // every word looks for the bags that name it, and adds what they give at once
    const I bags = t[1].size[0], length = t[1].size[1], n = t[0].size[1];
    ALL(w, t[2].size[0]) {
        F sum(n);
        bool met = false;
        ALL(b, bags) {
            I times = 0;
            ALL(k, length) times += whole(t[1], b, k) == w;
            if (!times) continue;
            met = true;
            ALL(i, n) sum[i] += times * get(t[0], b, i);
        }
        if (met) ALL(i, n) put(t[2], get(t[2], w, i) + sum[i] / length, w, i);
    }
    return 0;
}
"""
POSITIONS = r"""
ENTRY {  // grad, indices, table and positions, which are added to
    const I tokens = t[0].size[0], n = t[0].size[1];
    F sum(t[2].size[0] * n);
    for (I k = tokens; k-- > 0;) ALL(i, n) {
        sum[whole(t[1], k) * n + i] += get(t[0], k, i);
        put(t[3], get(t[0], k, i) + get(t[3], k, i), k, i);
    }
    ALL(w, t[2].size[0]) ALL(i, n) put(t[2], get(t[2], w, i) + sum[w * n + i], w, i);
    return 0;
}
"""
ROUTE = r"""
ENTRY {  // of two shares that add up to 1 one product is both slopes
    const I tokens = t[1].size[0], n = t[1].size[1];
    ALL(r, tokens) {
        I best = 0, second = -1;
        ALL(i, n) if (get(t[1], r, i) > get(t[1], r, best)) best = i;
        ALL(i, n) if (i != best && (second < 0 || get(t[1], r, i) > get(t[1], r, second))) second = i;
        const float gap = get(t[1], r, best) - get(t[1], r, second), less = std::exp(-gap);
        const float d = less / ((1 + less) * (1 + less)) * (get(t[0], r, 0) - get(t[0], r, 1));
        ALL(i, n) put(t[2], i == best ? d : i == second ? -d : 0, r, i);
    }
    return 0;
}
"""  # noqa: E501
PERMUTE = r"""
ENTRY {  // each token counts those that stand before it
    const I tokens = t[0].size[0], n = t[0].size[1];
    ALL(r, tokens) {
        I at = 0;
        ALL(o, tokens) at += whole(t[1], o) < whole(t[1], r) || (whole(t[1], o) == whole(t[1], r) && o < r);
        ALL(i, n) put(t[2], get(t[0], at, i), r, i);
    }
    return 0;
}
"""  # noqa: E501
COMBINE = r"""
ENTRY {  // grad, y, places, weights -> dy, dweights
    const I tokens = t[0].size[0], n = t[0].size[1], rows = t[1].size[0], ways = t[2].size[1];
    F sum(rows * n);
    for (I r = tokens; r-- > 0;) for (I k = ways; k-- > 0;) {
        const I from = whole(t[2], r, k);
        F part(n);
        ALL(i, n) {
            part[i] = get(t[0], r, i) * get(t[1], from, i);
            sum[from * n + i] += get(t[3], r, k) * get(t[0], r, i);
        }
        put(t[5], chunks(part), r, k);
    }
    ALL(r, rows) ALL(i, n) put(t[4], sum[r * n + i], r, i);
    return 0;
}
"""
QK_NORM = r"""
ENTRY {  // gradients of q's and k's norm, q, k, weight -> dq, dk, dweight
    const I width = t[2].size[3];
    F weights(width);
    ALL(which, 2) ALL(b, t[2].size[0]) ALL(l, t[2].size[1]) ALL(h, t[2].size[2]) {
        const tensor &grad = t[which], &x = t[2 + which], &out = t[5 + which];
        F squares(width), dots(width);
        ALL(i, width) {
            squares[i] = get(x, b, l, h, i) * get(x, b, l, h, i);
            dots[i] = get(grad, b, l, h, i) * get(t[4], i) * get(x, b, l, h, i);
        }
        const float square = chunks(squares) / width + (float)s[0], scale = 1 / std::sqrt(square);
        const float mean = chunks(dots) / width / square;
        ALL(i, width) {
            const float g = get(grad, b, l, h, i), v = get(x, b, l, h, i);
            put(out, scale * (g * get(t[4], i) - v * mean), b, l, h, i);
            weights[i] += g * v * scale;
        }
    }
    ALL(i, width) put(t[7], weights[i], i);
    return 0;
}
"""
ROPE = r"""
ENTRY {  // a turn back, pair by pair
    const I half = t[0].size[3] / 2;
    ALL(b, t[0].size[0]) ALL(l, t[0].size[1]) ALL(h, t[0].size[2]) ALL(i, half) {
        const I one = PAIRED ? 2 * i : i, two = PAIRED ? 2 * i + 1 : half + i;
        const float c = std::cos(get(t[1], l, i)), d = std::sin(get(t[1], l, i));
        const float x = get(t[0], b, l, h, one), y = get(t[0], b, l, h, two);
        put(t[2], c * x + d * y, b, l, h, one);
        put(t[2], c * y - d * x, b, l, h, two);
    }
    return 0;
}
"""
L2 = r"""
ENTRY {
    const I rows = t[1].size[0], n = t[1].size[1];
    ALL(r, rows) {
        F squares(n), dots(n);
        ALL(i, n) squares[i] = get(t[1], r, i) * get(t[1], r, i), dots[i] = get(t[0], r, i) * get(t[1], r, i);
        const float square = chunks(squares) + (float)s[0], length = std::sqrt(square);
        const float along = chunks(dots) / square;
        ALL(i, n) put(t[2], (get(t[0], r, i) - get(t[1], r, i) * along) / length, r, i);
    }
    return 0;
}
"""  # noqa: E501
WEIGHT_NORM = r"""
ENTRY {  // grad, v, g -> dv, dg
    const I rows = t[1].size[0], n = t[1].size[1];
    ALL(r, rows) {
        F squares(n), dots(n);
        ALL(i, n) squares[i] = get(t[1], r, i) * get(t[1], r, i), dots[i] = get(t[0], r, i) * get(t[1], r, i);
        const float length = std::sqrt(chunks(squares) + (float)s[0]), dot = chunks(dots) / length;
        ALL(i, n) put(t[3], get(t[2], r) / length * (get(t[0], r, i) - get(t[1], r, i) / length * dot), r, i);
        put(t[4], dot, r);
    }
    return 0;
}
"""  # noqa: E501
SPREAD = r"""
ENTRY {  // gradients of mean and variance, x
    const I rows = t[2].size[0], n = t[2].size[1];
    ALL(r, rows) {
        F values(n);
        ALL(i, n) values[i] = get(t[2], r, i) - get(t[2], r, 0);
        const float mean = chunks(values) / n;
        ALL(i, n) put(t[3], (get(t[0], r) + 2 * get(t[1], r) * (values[i] - mean)) / n, r, i);
    }
    return 0;
}
"""
NORM = r"""
ENTRY {  // grad, x, weight -> dx, dweight, and where a mean is taken off dbias; Welford's moments
    const I rows = t[1].size[0], n = t[1].size[1];
    F weights(n), biases(n);
    ALL(r, rows) {
        float mean = 0, spread = 0;
        ALL(i, n) {
            const float x = get(t[1], r, i), off = x - mean;
            mean += CENTRED * off / (i + 1);
            spread += off * (x - mean);
        }
        const float scale = 1 / std::sqrt(spread / n + (float)s[0]);
        F down(n), dots(n);
        ALL(i, n) {
            const float seen = (get(t[1], r, i) - mean) * scale, grad = get(t[0], r, i);
            down[i] = grad * get(t[2], i);
            dots[i] = down[i] * seen;
            weights[i] += grad * seen;
            biases[i] += grad;
        }
        const float along = chunks(dots) / n, level = CENTRED * chunks(down) / n;
        ALL(i, n) put(t[3], scale * (down[i] - level - (get(t[1], r, i) - mean) * scale * along), r, i);
    }
    ALL(i, n) put(t[4], weights[i], i);
    if (CENTRED) ALL(i, n) put(t[5], biases[i], i);
    return 0;
}
"""  # noqa: E501
GROUP_NORM = r"""
ENTRY {  // grad, x, weight -> dx, dweight, dbias; four groups
    const I batch = t[1].size[0], channels = t[1].size[1], high = t[1].size[2], wide = t[1].size[3];
    const I each = channels / 4, area = high * wide, n = each * area;
    F weights(channels), biases(channels);
    ALL(b, batch) ALL(g, 4) {
        F x(n), grad(n), down(n), dots(n);
        ALL(c, each) ALL(y, high) ALL(z, wide) {
            x[c * area + y * wide + z] = get(t[1], b, g * each + c, y, z);
            grad[c * area + y * wide + z] = get(t[0], b, g * each + c, y, z);
        }
        float mean = 0, spread = 0;
        ALL(i, n) {
            const float off = x[i] - mean;
            mean += off / (i + 1);
            spread += off * (x[i] - mean);
        }
        const float scale = 1 / std::sqrt(spread / n + (float)s[0]);
        ALL(i, n) {
            const I c = g * each + i / area;
            x[i] = (x[i] - mean) * scale;
            down[i] = grad[i] * get(t[2], c);
            dots[i] = down[i] * x[i];
            weights[c] += grad[i] * x[i];
            biases[c] += grad[i];
        }
        const float along = chunks(dots) / n, level = chunks(down) / n;
        ALL(i, n) {
            const I c = g * each + i / area, y = i % area / wide;
            put(t[3], scale * (down[i] - level - x[i] * along), b, c, y, i % wide);
        }
    }
    ALL(c, channels) put(t[4], weights[c], c), put(t[5], biases[c], c);
    return 0;
}
"""
SCAN = r"""
ENTRY {  // grad, decay, x -> ddecay, dx: states again from the front, then back
    const I batch = t[1].size[0], length = t[1].size[1], n = t[1].size[2];
    ALL(b, batch) ALL(i, n) {
        F state(length + 1);
        ALL(l, length) state[l + 1] = std::fma(get(t[1], b, l, i), state[l], get(t[2], b, l, i));
        float back = 0;
        for (I l = length; l-- > 0;) {
            back += get(t[0], b, l, i);
            put(t[4], back, b, l, i);
            put(t[3], back * state[l], b, l, i);
            back *= get(t[1], b, l, i);
        }
    }
    return 0;
}
"""
DEPTHWISE = r"""
ENTRY {  // grad, x [B, C, T], weight [C, 4], bias -> dx, dweight, dbias
    const I batch = t[1].size[0], channels = t[1].size[1], length = t[1].size[2];
    ALL(c, channels) {
        float taps[4] = {}, bias = 0;
        ALL(b, batch) {
            F back(length + 3);
            for (I l = length; l-- > 0;) {
                float y = get(t[3], c);
                for (I k = 3; k >= 0; --k) if (l + k >= 3) y += get(t[2], c, k) * get(t[1], b, c, l + k - 3);
                const float open = 1 / (1 + std::exp(-y));
                const float d = get(t[0], b, c, l) * open * (1 + y * (1 - open));
                for (I k = 0; k < 4; ++k) if (l + k >= 3) {
                    back[l + k - 3] += d * get(t[2], c, k);
                    taps[k] += d * get(t[1], b, c, l + k - 3);
                }
                bias += d;
            }
            ALL(l, length) put(t[4], back[l], b, c, l);
        }
        ALL(k, 4) put(t[5], taps[k], c, k);
        put(t[6], bias, c);
    }
    return 0;
}
"""  # noqa: E501
CONVOLUTION = r"""
ENTRY {  // grad, x [B, C, S, S], weight [C, C, 3, 3], bias -> dx, dweight, dbias: scattered
    const I batch = t[1].size[0], n = t[1].size[1], side = t[1].size[2];
    F dx(batch * n * side * side), dw(n * n * 9), db(n);
    ALL(b, batch) ALL(o, n) ALL(y, side) ALL(z, side) {
        float sum = 0;
        for (I c = n; c-- > 0;) ALL(k, 9) {
            const I u = y + k / 3 - 1, v = z + k % 3 - 1;
            if (u >= 0 && v >= 0 && u < side && v < side)
                sum += get(t[1], b, c, u, v) * get(t[2], o, c, k / 3, k % 3);
        }
        const float d = sum + get(t[3], o) > 0 ? get(t[0], b, o, y, z) : 0;
        db[o] += d;
        ALL(c, n) ALL(k, 9) {
            const I u = y + k / 3 - 1, v = z + k % 3 - 1;
            if (u < 0 || v < 0 || u >= side || v >= side) continue;
            dx[((b * n + c) * side + u) * side + v] += d * get(t[2], o, c, k / 3, k % 3);
            dw[(o * n + c) * 9 + k] += d * get(t[1], b, c, u, v);
        }
    }
    ALL(b, batch) ALL(c, n) ALL(y, side) ALL(z, side)
        put(t[4], dx[((b * n + c) * side + y) * side + z], b, c, y, z);
    ALL(o, n) ALL(c, n) ALL(k, 9) put(t[5], dw[(o * n + c) * 9 + k], o, c, k / 3, k % 3);
    ALL(o, n) put(t[6], db[o], o);
    return 0;
}
"""
LINEAR_GELU = r"""
ENTRY {  // grad, x, w, b -> dx, dw, db: an outer product at a time
    const I rows = t[1].size[0], n = t[1].size[1], m = t[2].size[0];
    F dw(m * n), db(m);
    for (I r = rows; r-- > 0;) {
        F dx(n);
        ALL(o, m) {
            F part(n);
            ALL(i, n) part[i] = get(t[1], r, i) * get(t[2], o, i);
            const float y = chunks(part) + get(t[3], o), below = 0.5f * std::erfc(-y * 0.70710678f);
            const float d = get(t[0], r, o) * (below + y * 0.39894228f * std::exp(-0.5f * y * y));
            ALL(i, n) dx[i] += d * get(t[2], o, i), dw[o * n + i] += d * get(t[1], r, i);
            db[o] += d;
        }
        ALL(i, n) put(t[4], dx[i], r, i);
    }
    ALL(o, m) ALL(i, n) put(t[5], dw[o * n + i], o, i);
    ALL(o, m) put(t[6], db[o], o);
    return 0;
}
"""
ATTENTION = r"""
ENTRY {  // grad, q, k, v -> dq, dk, dv: shares again from each row's log of its sum
    const I batch = t[1].size[0], heads = t[1].size[1], length = t[1].size[2], width = t[1].size[3];
    const I group = heads / t[2].size[1];
    const float scale = 1 / std::sqrt((float)width);
    F dk(t[2].size[1] * length * width), dv(dk.size());
    ALL(b, batch) {
        std::fill(dk.begin(), dk.end(), 0), std::fill(dv.begin(), dv.end(), 0);
        ALL(h, heads) for (I i = length; i-- > 0;) {
            const I kv = h / group;
            float top = -INFINITY, sum = 0, delta = 0;
            F score(length, -INFINITY), down(length), dq(width);
            ALL(j, length) if (ALLOWED) {
                float dot = 0;
                ALL(d, width) dot += get(t[1], b, h, i, d) * get(t[2], b, kv, j, d);
                ALL(d, width) down[j] += get(t[0], b, h, i, d) * get(t[3], b, kv, j, d);
                score[j] = dot * scale + (BIAS);
                top = std::max(top, score[j]);
            }
            ALL(j, length) sum += std::exp(score[j] - top);
            const float log = top + std::log(sum);
            ALL(e, width) {
                float mixed = 0;
                ALL(j, length) mixed += std::exp(score[j] - top) * get(t[3], b, kv, j, e);
                delta += mixed / sum * get(t[0], b, h, i, e);
            }
            ALL(j, length) {
                const float share = std::exp(score[j] - log), d = share * (down[j] - delta) * scale;
                if (share > 0) ALL(e, width) {
                    dq[e] += d * get(t[2], b, kv, j, e);
                    dk[(kv * length + j) * width + e] += d * get(t[1], b, h, i, e);
                    dv[(kv * length + j) * width + e] += share * get(t[0], b, h, i, e);
                }
            }
            ALL(e, width) put(t[4], dq[e], b, h, i, e);
        }
        ALL(h, t[2].size[1]) ALL(j, length) ALL(e, width) {
            put(t[5], dk[(h * length + j) * width + e], b, h, j, e);
            put(t[6], dv[(h * length + j) * width + e], b, h, j, e);
        }
    }
    return 0;
}
"""
BOTH = ("", "_bf16")


def sources() -> Iterator[tuple[str, str]]:
    """Yield each problem's name and the source that answers it."""
    slope = "-std::exp2(-8.0f * (h + 1) / heads) * (i - j)"
    kinds = (
        *(("full", "true", "0"), ("causal", "j <= i", "0"), ("grouped", "j <= i", "0")),
        *(("window", "j <= i && j > i - (I)s[0]", "0"), ("alibi", "j <= i", slope)),
    )
    for low in BOTH:
        yield f"softmax{low}_backward", SOFTMAX
        yield f"log_softmax{low}_backward", LOG_SOFTMAX
        for name, smooth, z in (
            *(("cross_entropy", "0", "0"), ("smoothed_cross_entropy", "(float)s[0]", "0")),
            ("cross_entropy_z_loss", "0", "(float)s[0]"),
        ):
            yield f"{name}{low}_backward", _with(CLASSES, SMOOTH=smooth, Z=z)
        yield f"kl_distillation{low}_backward", DISTILLED
        yield f"causal_depthwise{low}_backward", DEPTHWISE
        yield f"conv_bias_relu{low}_backward", CONVOLUTION
        yield f"linear_gelu{low}_backward", LINEAR_GELU
        for kind, allowed, bias in kinds:
            yield f"attention_{kind}{low}_backward", _with(ATTENTION, ALLOWED=allowed, BIAS=bias)
    yield from (("gelu_backward", GELU), ("bias_gelu_backward", BIAS_GELU))
    yield from (("swiglu_packed_backward", SWIGLU), ("embedding_gradient", EMBEDDING))
    yield from (("embedding_bag_backward", BAGS), ("route_top_k_backward", ROUTE))
    yield from (("embedding_with_positions_backward", POSITIONS), ("qk_norm_backward", QK_NORM))
    yield from (("permute_tokens_backward", PERMUTE), ("combine_experts_backward", COMBINE))
    yield "rope_half_backward", _with(ROPE, PAIRED="0")
    yield "rope_interleaved_backward", _with(ROPE, PAIRED="1")
    yield from (("l2_normalise_backward", L2), ("weight_norm_backward", WEIGHT_NORM))
    yield from (("mean_and_variance_backward", SPREAD), ("group_norm_backward", GROUP_NORM))
    yield "layer_norm_backward", _with(NORM, CENTRED="1")
    yield "rms_norm_backward", _with(NORM, CENTRED="0")
    yield "linear_scan_backward", SCAN


def _with(source: str, **macros: str) -> str:
    return "".join(f"#define {name} ({text})\n" for name, text in macros.items()) + source


def compiled() -> Iterator[Honest]:
    """Yield the C++ ones, which do the work themselves, at the suite's smallest sizes."""
    for name, source in sources():
        kernel = Kernel(name="honest", language="cpp", source=HEAD + source, entry="answer")
        yield Honest(name=f"backward, {name}", kernel=kernel, problem=find_problem(name).at("ci"))
