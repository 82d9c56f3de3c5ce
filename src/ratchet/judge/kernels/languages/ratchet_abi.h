// The plain C interface between Python and a compiled kernel (see ratchet/kernels/abi.py).
//
//   extern "C" int64_t ENTRY(const ratchet_tensor* t, int64_t count,
//                            const double* scalars, int64_t scalar_count);
//
// t holds the inputs, then the outputs. Outputs are allocated by the caller; a tensor that is
// changed in place appears once, among the inputs. Returns RATCHET_DONE, or a positive code when the
// kernel does not take these inputs; then it has written nothing.
#pragma once
#include <stdint.h>

#define RATCHET_MAX_DIMENSIONS 6

enum {
    RATCHET_F32 = 0,
    RATCHET_BF16 = 1,
    RATCHET_F64 = 2,
    RATCHET_I64 = 3,
    RATCHET_I32 = 4,
    RATCHET_BOOL = 5,     // a byte, 0 or 1
    RATCHET_F16 = 6,
    RATCHET_U8 = 7,       // uint8_t
    RATCHET_I8 = 8,       // int8_t
    RATCHET_F8_E4M3 = 9,  // uint8_t: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no inf, 0x7f is NaN
    RATCHET_F8_E5M2 = 10  // uint8_t: a sign, 5 bits of exponent (bias 15), 2 of mantissa; inf and NaN
};

enum { RATCHET_DONE = 0, RATCHET_DECLINED = 1 };

typedef struct {
    void* data;
    int64_t dtype;
    int64_t ndim;
    int64_t size[RATCHET_MAX_DIMENSIONS];
    int64_t stride[RATCHET_MAX_DIMENSIONS];  // in elements
} ratchet_tensor;

#define RATCHET_ENTRY extern "C" __attribute__((visibility("default"))) int64_t

static inline int64_t ratchet_numel(const ratchet_tensor* t) {
    int64_t n = 1;
    for (int64_t d = 0; d < t->ndim; ++d) n *= t->size[d];
    return n;
}

static inline int ratchet_is_contiguous(const ratchet_tensor* t) {
    int64_t expected = 1;
    for (int64_t d = t->ndim - 1; d >= 0; --d) {
        if (t->size[d] != 1 && t->stride[d] != expected) return 0;
        expected *= t->size[d];
    }
    return 1;
}
