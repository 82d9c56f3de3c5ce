// Cross-entropy over rows of logits that a matrix product has written: the loss of each row and, in place, its gradient.
//
//   cross_entropy_rows   logits [C,V] bf16 or fp32 (in place: dlogits), target [C] int64 -> loss [C] fp32
//   scalars: ignore_index, label_smoothing, scale (of the gradient; 0: logits stay as they are)
//
// A row is widened once into fp32 scratch that stays in L2: largest and total, exponentials and their sum, gradient.
#include <cmath>
#include <cstring>
#include <new>

#include "gemm_rows.h"
#include "gemm_scratch.h"
#include "ratchet_abi.h"

struct LogitRows {
    const ratchet_tensor& logits;
    const int64_t* target;
    int64_t vocabulary, ignore_index;
    float smoothing, scale;
};

static inline char* row_at(const LogitRows& rows, int64_t i) {
    return static_cast<char*>(rows.logits.data) + i * rows.logits.stride[0] * (rows.logits.dtype == RATCHET_BF16 ? 2 : 4);
}

static void ignore_row(const LogitRows& rows, int64_t i) {
    if (rows.scale != 0) std::memset(row_at(rows, i), 0, static_cast<std::size_t>(rows.vocabulary) * (rows.logits.dtype == RATCHET_BF16 ? 2 : 4));
}

static Lane lane_at(const LogitRows& rows, int64_t i) { return Lane{row_at(rows, i), rows.logits.dtype == RATCHET_BF16}; }

static void write_row(const LogitRows& rows, int64_t i, const float* from, float factor, float shift, float at_target) {
    const Lane to = lane_at(rows, i);
    row_scale(lane(from), rows.vocabulary, factor, shift, to);
    to.store(rows.target[i], vset(at_target), 1);
}

static float do_row(const LogitRows& rows, int64_t i, float* own) {
    if (rows.target[i] == rows.ignore_index) {
        ignore_row(rows, i);
        return 0;
    }
    row_scale(lane_at(rows, i), rows.vocabulary, 1, 0, lane(own));
    const float picked = own[rows.target[i]], even = rows.smoothing / static_cast<float>(rows.vocabulary);
    const RowPart part = row_scan(own, rows.vocabulary, nullptr);
    const float sum = row_exp(own, rows.vocabulary, part.largest, lane(own));
    const float lse = part.largest + std::log(sum);
    if (rows.scale != 0)
        write_row(rows, i, own, rows.scale / sum, even * rows.scale, (std::expm1(picked - lse) + rows.smoothing - even) * rows.scale);
    const float spread = rows.smoothing > 0 ? even * part.total : 0.0f;
    return lse - (1 - rows.smoothing) * picked - spread;
}

static bool takes(const ratchet_tensor* t, int64_t count, int64_t scalar_count) {
    if (count != 3 || scalar_count != 3 || t[0].ndim != 2 || t[0].size[1] == 0 || t[0].stride[1] != 1) return false;
    if (t[0].dtype != RATCHET_BF16 && t[0].dtype != RATCHET_F32) return false;
    if (t[1].dtype != RATCHET_I64 || ratchet_numel(&t[1]) != t[0].size[0] || !ratchet_is_contiguous(&t[1])) return false;
    return t[2].dtype == RATCHET_F32 && ratchet_numel(&t[2]) == t[0].size[0] && ratchet_is_contiguous(&t[2]);
}

static bool targets_exist(const LogitRows& rows, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (rows.target[i] != rows.ignore_index && (rows.target[i] < 0 || rows.target[i] >= rows.vocabulary)) return false;
    return true;
}

RATCHET_ENTRY cross_entropy_rows(const ratchet_tensor* t, int64_t count, const double* scalars, int64_t scalar_count) {
    if (!takes(t, count, scalar_count)) return RATCHET_DECLINED;
    const LogitRows rows{t[0], static_cast<const int64_t*>(t[1].data), t[0].size[1], static_cast<int64_t>(scalars[0]),
                    static_cast<float>(scalars[1]), static_cast<float>(scalars[2])};
    if (!targets_exist(rows, t[0].size[0])) return RATCHET_DECLINED;
    float* losses = static_cast<float*>(t[2].data);
    const int64_t width = (rows.vocabulary + 15) / 16 * 16 + 48;  // no two threads' rows a multiple of 4 KB apart
    try {
        float* shared = static_cast<float*>(scratch<0>(width * 4 * omp_get_max_threads()));
#pragma omp parallel for schedule(dynamic, 4)
        for (int64_t i = 0; i < t[0].size[0]; ++i) losses[i] = do_row(rows, i, shared + width * omp_get_thread_num());
    } catch (const std::bad_alloc&) {
        return RATCHET_DECLINED;
    }
    return RATCHET_DONE;
}
