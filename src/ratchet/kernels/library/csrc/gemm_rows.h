// Cross-entropy on one row of logits: the largest, the sum of exponentials, the probabilities.
#pragma once
#include "gemm_exp.h"

constexpr float LOWEST_LOGIT = -3.0e38f;  // stands for the maximum of a row of -inf, so that exp(-inf - max) is 0

struct RowPart {
    float largest, sum;    // of logits; of exp(logit - largest)
    float total = 0;       // of the logits themselves, for label smoothing
};

#if defined(GEMM_AVX512)

// Adds the bias in place; the largest and the total of the row.
static inline RowPart row_scan(float* row, int64_t size, const float* bias) {
    __m512 largest = _mm512_set1_ps(LOWEST_LOGIT), total = _mm512_setzero_ps();
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        __m512 value = _mm512_maskz_loadu_ps(mask, row + j);
        if (bias) {
            value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias + j));
            _mm512_mask_storeu_ps(row + j, mask, value);
        }
        largest = _mm512_mask_max_ps(largest, mask, largest, value);
        total = _mm512_mask_add_ps(total, mask, total, value);
    }
    return {_mm512_reduce_max_ps(largest), 0, _mm512_reduce_add_ps(total)};
}

// exp(row - largest) rounded to bf16 at `to` (or nowhere), and its sum before rounding.
static inline float row_exp(const float* row, int64_t size, float largest, uint16_t* to) {
    const __m512 shift = _mm512_set1_ps(largest);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        const __m512 value = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row + j), shift));
        sum = _mm512_mask_add_ps(sum, mask, sum, value);
        if (to) _mm256_mask_storeu_epi16(to + j, mask, halves_of_floats(value));
    }
    return _mm512_reduce_add_ps(sum);
}

// to = from * factor - shift, in bf16.
static inline void row_scale(const uint16_t* from, int64_t size, float factor, float shift, uint16_t* to) {
    const __m512 scale = _mm512_set1_ps(factor), minus = _mm512_set1_ps(shift);
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        const __m512 value = _mm512_fmsub_ps(load_floats<BF16>(from, j, mask), scale, minus);
        _mm256_mask_storeu_epi16(to + j, mask, halves_of_floats(value));
    }
}

static inline void row_round(const float* from, int64_t size, uint16_t* to) {
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        _mm256_mask_storeu_epi16(to + j, mask, halves_of_floats(_mm512_maskz_loadu_ps(mask, from + j)));
    }
}

static inline void row_widen(const uint16_t* from, int64_t size, float* to) {
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        _mm512_mask_storeu_ps(to + j, mask, load_floats<BF16>(from, j, mask));
    }
}

// row = exp(row - largest); returns the sum.
static inline float row_exp_in_place(float* row, int64_t size, float largest) {
    const __m512 shift = _mm512_set1_ps(largest);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        const __m512 value = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row + j), shift));
        sum = _mm512_mask_add_ps(sum, mask, sum, value);
        _mm512_mask_storeu_ps(row + j, mask, value);
    }
    return _mm512_reduce_add_ps(sum);
}

// to = from * factor - shift, in the dtype of `to`.
template <class T>
static inline void row_finish(const float* from, int64_t size, float factor, float shift, T* to) {
    const __m512 scale = _mm512_set1_ps(factor), minus = _mm512_set1_ps(shift);
    for (int64_t j = 0; j < size; j += 16) {
        const __mmask16 mask = first16(size - j);
        const __m512 value = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(mask, from + j), scale, minus);
        if (sizeof(T) == 2)
            _mm256_mask_storeu_epi16(to + j, mask, halves_of_floats(value));
        else
            _mm512_mask_storeu_ps(to + j, mask, value);
    }
}

#else

static inline RowPart row_scan(float* row, int64_t size, const float* bias) {
    float largest = LOWEST_LOGIT, total = 0;
    if (bias)
        for (int64_t j = 0; j < size; ++j) row[j] += bias[j];
    for (int64_t j = 0; j < size; ++j) {
        largest = row[j] > largest ? row[j] : largest;
        total += row[j];
    }
    return {largest, 0, total};
}

static inline float row_exp(const float* row, int64_t size, float largest, uint16_t* to) {
    float sum = 0;
    for (int64_t j = 0; j < size; ++j) {
        const float value = exp1(row[j] - largest);
        sum += value;
        if (to) to[j] = bf16_of_float(value);
    }
    return sum;
}

static inline void row_scale(const uint16_t* from, int64_t size, float factor, float shift, uint16_t* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = bf16_of_float(float_of_bf16(from[j]) * factor - shift);
}

static inline void row_round(const float* from, int64_t size, uint16_t* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = bf16_of_float(from[j]);
}

static inline void row_widen(const uint16_t* from, int64_t size, float* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = float_of_bf16(from[j]);
}

static inline float row_exp_in_place(float* row, int64_t size, float largest) {
    double sum = 0;  // one running fp32 sum would lose digits over a whole vocabulary
    for (int64_t j = 0; j < size; ++j) {
        row[j] = exp1(row[j] - largest);
        sum += row[j];
    }
    return static_cast<float>(sum);
}

static inline void row_finish(const float* from, int64_t size, float factor, float shift, uint16_t* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = bf16_of_float(from[j] * factor - shift);
}
static inline void row_finish(const float* from, int64_t size, float factor, float shift, float* to) {
    for (int64_t j = 0; j < size; ++j) to[j] = from[j] * factor - shift;
}

#endif
