// The three products of a linear layer, y = x.W^T + bias, with fp32 sums.
//
//   linear_forward  x [T,I], weight [O,I], bias [O] or [0] -> y [T,O]
//   linear_dgrad    dy [T,O], weight [O,I]                 -> dx [T,I]
//   linear_wgrad    dy [T,O], x [T,I]                      -> dweight [O,I], dbias [O] or [0]
//
// Inputs are bf16 or fp32, with one of their two strides 1. Outputs are bf16 or fp32 with contiguous rows. The variants with
// bf16 instructions round fp32 to bf16 when packing, and decline two fp32 operands; the others multiply in fp32.
#include <new>

#include "gemm.h"
#include "ratchet_abi.h"

static bool takes_dtype(const ratchet_tensor& t) { return t.dtype == RATCHET_F32 || t.dtype == RATCHET_BF16; }

// The stride of a dimension of size 1 is never used: call it 1.
static int64_t stride_of(const ratchet_tensor& t, int dimension) { return t.size[dimension] == 1 ? 1 : t.stride[dimension]; }

static bool takes_matrix(const ratchet_tensor& t) {
    return t.ndim == 2 && takes_dtype(t) && t.size[0] > 0 && t.size[1] > 0 && (stride_of(t, 0) == 1 || stride_of(t, 1) == 1);
}

static bool takes_output(const ratchet_tensor& t, int64_t rows, int64_t cols) {
    return t.ndim == 2 && takes_dtype(t) && t.size[0] == rows && t.size[1] == cols && stride_of(t, 1) == 1;
}

static bool takes_vector(const ratchet_tensor& t, int64_t size) {
    return t.ndim == 1 && takes_dtype(t) && t.size[0] == size && stride_of(t, 0) == 1;
}

static Operand by_rows(const ratchet_tensor& t) { return {t.data, t.dtype, stride_of(t, 0), stride_of(t, 1)}; }
static Operand by_columns(const ratchet_tensor& t) { return {t.data, t.dtype, stride_of(t, 1), stride_of(t, 0)}; }

static int64_t multiply(const Gemm& product) {
    if (!micro_available() || (UNIT == 2 && product.a.dtype == FP32 && product.b.dtype == FP32)) return RATCHET_DECLINED;
    try {
        gemm(product);
    } catch (const std::bad_alloc&) {
        return RATCHET_DECLINED;
    }
    return RATCHET_DONE;
}

RATCHET_ENTRY linear_forward(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    if (count != 4) return RATCHET_DECLINED;
    const ratchet_tensor &x = t[0], &weight = t[1], &bias = t[2], &y = t[3];
    if (!takes_matrix(x) || !takes_matrix(weight) || x.size[1] != weight.size[1]) return RATCHET_DECLINED;
    if (!takes_output(y, x.size[0], weight.size[0])) return RATCHET_DECLINED;
    if (ratchet_numel(&bias) > 0 && !takes_vector(bias, weight.size[0])) return RATCHET_DECLINED;
    Gemm product{x.size[0], weight.size[0], x.size[1], by_rows(x), by_rows(weight), y.data, y.dtype, stride_of(y, 0)};
    if (ratchet_numel(&bias) > 0) product.bias = bias.data, product.bias_dtype = bias.dtype;
    return multiply(product);
}

RATCHET_ENTRY linear_dgrad(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    if (count != 3) return RATCHET_DECLINED;
    const ratchet_tensor &dy = t[0], &weight = t[1], &dx = t[2];
    if (!takes_matrix(dy) || !takes_matrix(weight) || dy.size[1] != weight.size[0]) return RATCHET_DECLINED;
    if (!takes_output(dx, dy.size[0], weight.size[1])) return RATCHET_DECLINED;
    return multiply({dy.size[0], weight.size[1], dy.size[1], by_rows(dy), by_columns(weight), dx.data, dx.dtype, stride_of(dx, 0)});
}

// Columns j .. j + STRIPE of dy, summed over rows in fp32.
constexpr int64_t STRIPE = 128;
template <class Load>
static void sum_stripe(const ratchet_tensor& dy, const ratchet_tensor& dbias, int64_t j, int64_t across, Load load) {
    float sums[STRIPE] = {};
    const int64_t width = min64(STRIPE, dy.size[1] - j), down = stride_of(dy, 0);
    for (int64_t first = 0; first < dy.size[0]; first += 16) {  // sums of sums lose less
        float some[STRIPE] = {};
        for (int64_t i = first; i < min64(first + 16, dy.size[0]); ++i)
            for (int64_t c = 0; c < width; ++c) some[c] += load(i * down + (j + c) * across);
        for (int64_t c = 0; c < width; ++c) sums[c] += some[c];
    }
    for (int64_t c = 0; c < width; ++c) {
        if (dbias.dtype == RATCHET_BF16)
            static_cast<uint16_t*>(dbias.data)[j + c] = bf16_of_float(sums[c]);
        else
            static_cast<float*>(dbias.data)[j + c] = sums[c];
    }
}

static void sum_columns(const ratchet_tensor& dy, const ratchet_tensor& dbias) {
    const uint16_t* halves = static_cast<const uint16_t*>(dy.data);
    const float* floats = static_cast<const float*>(dy.data);
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < dy.size[1]; j += STRIPE) {
        if (dy.dtype == RATCHET_BF16)
            sum_stripe(dy, dbias, j, stride_of(dy, 1), [halves](int64_t at) { return float_of_bf16(halves[at]); });
        else if (stride_of(dy, 1) == 1)
            sum_stripe(dy, dbias, j, 1, [floats](int64_t at) { return floats[at]; });
        else
            sum_stripe(dy, dbias, j, stride_of(dy, 1), [floats](int64_t at) { return floats[at]; });
    }
}

RATCHET_ENTRY linear_wgrad(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    if (count != 4) return RATCHET_DECLINED;
    const ratchet_tensor &dy = t[0], &x = t[1], &dweight = t[2], &dbias = t[3];
    if (!takes_matrix(dy) || !takes_matrix(x) || dy.size[0] != x.size[0]) return RATCHET_DECLINED;
    if (!takes_output(dweight, dy.size[1], x.size[1])) return RATCHET_DECLINED;
    if (ratchet_numel(&dbias) > 0 && !takes_vector(dbias, dy.size[1])) return RATCHET_DECLINED;
    const int64_t code = multiply({dy.size[1], x.size[1], dy.size[0], by_columns(dy), by_columns(x), dweight.data, dweight.dtype, stride_of(dweight, 0)});
    if (code == RATCHET_DONE && ratchet_numel(&dbias) > 0) sum_columns(dy, dbias);
    return code;
}
