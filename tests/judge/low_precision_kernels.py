"""Kernels on int8 and fp8 in C++ and Triton, for problems of the training suite."""

from __future__ import annotations

from ratchet.judge.kernels.kernel import Kernel

HEAD = r"""
#include <stdint.h>
#include <math.h>
typedef struct { void* data; int64_t dtype, ndim, size[6], stride[6]; } tensor;
static float wide(uint16_t half) { union { uint32_t i; float f; } u; u.i = (uint32_t)half << 16; return u.f; }
static uint16_t narrow(float value) {
    union { uint32_t i; float f; } u; u.f = value;
    return (uint16_t)((u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16);
}
static float from_e4m3(uint8_t code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    float size = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((code & 127) == 127) size = NAN;
    return code & 128 ? -size : size;
}
static uint8_t to_e4m3(float value) {
    const uint8_t sign = signbit(value) ? 128 : 0;
    const float size = fminf(fabsf(value), 448.0f);
    if (size < ldexpf(1.0f, -6)) return sign | (uint8_t)ROUND(size * 512.0f);
    int exponent = ilogbf(size);
    int steps = (int)ROUND(ldexpf(size, 3 - exponent));
    if (steps == 16) { steps = 8; ++exponent; }
    return sign | (uint8_t)(((exponent + 7) << 3) | (steps - 8));
}
#define ENTRY(name) extern "C" int64_t name(const tensor* t, int64_t count, const double* s, int64_t ns)
static int64_t at(const tensor* t, int64_t i, int64_t j) { return i * t->stride[0] + j * t->stride[1]; }
"""  # noqa: E501

QUANTISE_ROWS = r"""
ENTRY(quantise_rows) {
    const tensor *x = t, *codes = t + 1, *scales = t + 2;
    if (x->dtype != 1 || codes->dtype != 8 || scales->dtype != 0) return -1;
    for (int64_t i = 0; i < x->size[0]; ++i) {
        float most = 1e-12f;
        const uint16_t* in = (const uint16_t*)x->data;
        for (int64_t j = 0; j < x->size[1]; ++j) most = fmaxf(most, fabsf(wide(in[at(x, i, j)])));
        const float up = 127.0f / most;
        for (int64_t j = 0; j < x->size[1]; ++j)
            ((int8_t*)codes->data)[at(codes, i, j)] = (int8_t)ROUND(wide(in[at(x, i, j)]) * up);
        ((float*)scales->data)[i] = most / 127.0f;
    }
    return 0;
}
"""

QUANTISE_FP8_BLOCKS = r"""
ENTRY(quantise_fp8_blocks) {
    const tensor *x = t, *codes = t + 1, *scales = t + 2;
    if (x->dtype != 1 || codes->dtype != 9 || scales->dtype != 0) return -1;
    const uint16_t* in = (const uint16_t*)x->data;
    for (int64_t i = 0; i < x->size[0]; ++i)
        for (int64_t b = 0; b < scales->size[1]; ++b) {
            const int64_t end = (b + 1) * 128 < x->size[1] ? (b + 1) * 128 : x->size[1];
            float most = 1e-12f;
            for (int64_t j = b * 128; j < end; ++j)
                most = fmaxf(most, fabsf(wide(in[at(x, i, j)])));
            const float up = 448.0f / most;
            for (int64_t j = b * 128; j < end; ++j)
                ((uint8_t*)codes->data)[at(codes, i, j)] = to_e4m3(wide(in[at(x, i, j)]) * up);
            ((float*)scales->data)[at(scales, i, b)] = most / 448.0f;
        }
    return 0;
}
"""

DEQUANTISE_FP8 = r"""
ENTRY(dequantise_fp8) {
    const tensor *codes = t, *out = t + 2;
    if (codes->dtype != 9 || out->dtype != 1) return -1;
    const float scale = *(const float*)t[1].data;
    float table[256];
    for (int c = 0; c < 256; ++c) table[c] = from_e4m3((uint8_t)c);
    for (int64_t i = 0; i < codes->size[0]; ++i)
        for (int64_t j = 0; j < codes->size[1]; ++j) {
            const float value = table[((const uint8_t*)codes->data)[at(codes, i, j)]];
            ((uint16_t*)out->data)[at(out, i, j)] = narrow(value * scale);
        }
    return 0;
}
"""

ADAM_8_BIT = r"""
ENTRY(adam_8_bit) {
    const int64_t n = t->size[0];
    float* w = (float*)t[0].data; const uint16_t* g = (const uint16_t*)t[1].data;
    int8_t* mc = (int8_t*)t[2].data; float* ms = (float*)t[3].data;
    uint8_t* vc = (uint8_t*)t[4].data; float* vs = (float*)t[5].data;
    if (t[2].dtype != 8 || t[4].dtype != 7) return -1;
    const float lr = (float)s[0], b1 = (float)s[1], b2 = (float)s[2], eps = (float)s[3];
    const float first = (float)(1 - pow(s[1], s[5])), second = (float)(1 - pow(s[2], s[5]));
    for (int64_t b = 0; b * 256 < n; ++b) {
        const int64_t size = n - b * 256 < 256 ? n - b * 256 : 256;
        float m[256], r[256], most_m = 0, most_r = 0;
        for (int64_t i = 0; i < size; ++i) {
            const int64_t k = b * 256 + i;
            const float d = wide(g[k]), root = vc[k] * (vs[b] / 255.0f);
            m[i] = b1 * (mc[k] * (ms[b] / 127.0f)) + (1 - b1) * d;
            const float v = b2 * root * root + (1 - b2) * d * d;
            r[i] = sqrtf(v);
            w[k] = w[k] * (1 - lr * (float)s[4]) - lr * m[i] / first / (sqrtf(v / second) + eps);
            most_m = fmaxf(most_m, fabsf(m[i])); most_r = fmaxf(most_r, r[i]);
        }
        ms[b] = most_m; vs[b] = most_r;
        for (int64_t i = 0; i < size; ++i) {
            mc[b * 256 + i] = (int8_t)ROUND(m[i] / most_m * 127.0f);
            vc[b * 256 + i] = (uint8_t)ROUND(r[i] / most_r * 255.0f);
        }
    }
    return 0;
}
"""

SOURCES = {
    "quantise_rows": QUANTISE_ROWS,
    "quantise_fp8_blocks": QUANTISE_FP8_BLOCKS,
    "dequantise_fp8": DEQUANTISE_FP8,
    "adam_8_bit": ADAM_8_BIT,
}
WRONG = {
    "quantise_rows": ("ROUND(wide", "floorf(wide"),
    "quantise_fp8_blocks": ("to_e4m3(wide", "0xf8 & to_e4m3(wide"),
    "dequantise_fp8": ("from_e4m3((uint8_t)c)", "from_e4m3((uint8_t)(c & 0xfe))"),
    "adam_8_bit": ("mc[b * 256 + i] =", "if (0) mc[b * 256 + i] ="),
}
"""What each does wrong: rounds down, drops a digit, drops a bit, keeps the old codes."""

TRITON = {
    "quantise_rows": """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, codes, scales, down, across, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * down + at * across, at < width, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0), 1e-12) / 127
    steps = value / scale
    near = tl.floor(steps + 0.5)
    tl.store(codes + row * width + at, near.to(tl.int8), at < width)
    tl.store(scales + row, scale)


def quantise_rows(x, scalars):
    rows, width = x.shape
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, device=x.device)
    block = triton.next_power_of_2(width)
    kernel[(rows,)](x, codes, scales, x.stride(0), x.stride(1), width, BLOCK=block)
    return codes, scales
""",
    "dequantise_fp8": """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(codes, scale, out, down, across, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(codes + row * down + at * across, at < width, 0.0).to(tl.float32)
    tl.store(out + row * width + at, (value * tl.load(scale)).to(tl.bfloat16), at < width)


def dequantise_fp8(codes, scale, scalars):
    rows, width = codes.shape
    out = torch.empty(rows, width, dtype=torch.bfloat16, device=codes.device)
    block = triton.next_power_of_2(width)
    kernel[(rows,)](
        codes, scale, out, codes.stride(0), codes.stride(1), width, BLOCK=block
    )
    return (out,)
""",
}


def honest(name: str) -> Kernel:
    """A right C++ kernel for a problem of the suite; rounds to nearest, ties to even."""
    return _cpp(name, SOURCES[name])


def wrong(name: str) -> Kernel:
    """The same with one thing wrong."""
    old, new = WRONG[name]
    assert old in SOURCES[name]
    return _cpp(name, SOURCES[name].replace(old, new))


def in_triton(name: str) -> Kernel:
    return Kernel(name=name, language="triton", source=TRITON[name], entry=name)


def _cpp(name: str, body: str) -> Kernel:
    source = f"#define ROUND nearbyintf\n{HEAD}{body}"
    return Kernel(name=name, language="cpp", source=source, entry=name)
