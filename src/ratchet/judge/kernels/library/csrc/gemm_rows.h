// Cross-entropy on one row of logits: the largest, the sum of exponentials, the probabilities.
#pragma once
#include "vec_math.h"

constexpr float LOWEST_LOGIT = -3.0e38f;  // stands for the maximum of a row of -inf, so that exp(-inf - max) is 0

struct RowPart {
    float largest, sum;    // of logits; of exp(logit - largest)
    float total = 0;       // of the logits themselves, for label smoothing
};

static inline Lane lane(const float* row) { return Lane{(char*)row, false}; }
static inline Lane lane(const uint16_t* row) { return Lane{(char*)row, true}; }

// Adds the bias in place; the largest and the total of the row.
static inline RowPart row_scan(float* row, int64_t size, const float* bias) {
    vf largest = vset(LOWEST_LOGIT);
    const float total = sum_over(size, [&](vf sum, int64_t j, int64_t n) {
        vf value = lane(row).load(j, n);
        if (bias) {
            value = value + lane(bias).load(j, n);
            lane(row).store(j, value, n);
        }
        largest = vmax(largest, vfirst(value, n, LOWEST_LOGIT));
        return sum + value;
    });
    return {vlargest(largest), 0, total};
}

// exp(row - largest) at `to` (fp32 or bf16; nowhere if its data is null), and its sum before rounding.
static inline float row_exp(const float* row, int64_t size, float largest, Lane to) {
    const vf shift = vset(largest);
    return sum_over(size, [&](vf sum, int64_t j, int64_t n) {
        const vf value = vexp(lane(row).load(j, n) - shift);
        if (to.data) to.store(j, value, n);
        return sum + vfirst(value, n, 0.0f);
    });
}

// to = from * factor - shift, each in fp32 or bf16.
static inline void row_scale(Lane from, int64_t size, float factor, float shift, Lane to) {
    const vf scale = vset(factor), minus = vset(-shift);
    for (int64_t j = 0; j < size; j += LANES) to.store(j, vfma(from.load(j, size - j), scale, minus), size - j);
}
