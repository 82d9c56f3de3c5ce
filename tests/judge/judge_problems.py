"""Problems and kernels for the judge's tests: references in torch, answers in C++ and Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec

HEAD = r"""
#include <stdint.h>
#include <math.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
typedef struct { void* data; int64_t dtype, ndim, size[6], stride[6]; } tensor;
static int64_t rows(const tensor* t) { int64_t n = 1; for (int d = 0; d + 1 < t->ndim; ++d) n *= t->size[d]; return n; }
static int contiguous(const tensor* t) { int64_t e = 1; for (int64_t d = t->ndim - 1; d >= 0; --d) { if (t->size[d] != 1 && t->stride[d] != e) return 0; e *= t->size[d]; } return 1; }
static int64_t calls = 0;
static int64_t silu_scale(const tensor* t, const double* s) {
    const tensor *x = t, *y = t + 1;
    const int64_t n = rows(x) * x->size[x->ndim - 1];
    const float* in = (const float*)x->data; float* out = (float*)y->data; const float k = (float)s[0];
#pragma omp parallel for simd if (n > 20000)
    for (int64_t i = 0; i < n; ++i) out[i] = k * in[i] / (1.0f + expf(-in[i]));
    return 0;
}
#define ENTRY extern "C" int64_t silu(const tensor* t, int64_t count, const double* s, int64_t ns)
"""  # noqa: E501

HONEST = "ENTRY { if (!contiguous(t)) return 1; return silu_scale(t, s); }"
"""Right, and declines what it cannot do."""


def silu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """A chain of element-wise steps that a fused kernel beats."""
    scaled = x * scalars[0]
    return (scaled * (1 / (1 + torch.exp(-x))),)


def wasteful_silu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """The same a hundred times over."""
    total = torch.zeros_like(x)
    for _ in range(100):
        total = total + silu(x, scalars)[0]
    return (total / 100,)


def inplace_axpy(w: Tensor, g: Tensor, scalars: Sequence[float]) -> tuple[Tensor, Tensor]:
    """w += a g in place; also gives the sum of squares of each row of g."""
    return w + scalars[0] * g, g.square().sum(-1)


def exponential(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.exp(scalars[0] * x),)


def constant(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.ones_like(x),)


def zeros(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x * 0,)


def identity(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.clone(),)


def rectified(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.relu(),)


def raises(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    raise ValueError("no such thing")


def mutates(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.mul_(2.0),)


def no_tuple(x: Tensor, scalars: Sequence[float]) -> Tensor:
    return x * 2


def case(name: str, *shape: int, timed: bool = False, hidden: bool = False, **kw: Any) -> Case:
    spec = TensorSpec(shape=shape, dtype="float32", **kw)
    return Case(name=name, inputs=(spec,), scalars=(1.5,), timed=timed, hidden=hidden)


def problem(reference: str = "silu", *cases: Case) -> Problem:
    usual = (
        case("timed", 96, 64, timed=True),
        case("tails", 7, 33, distribution="heavy_tailed"),
        case("hidden", 3, 5, 17, hidden=True, distribution="shifted"),
        case("gaps", 6, 24, layout="strided"),
        case("nothing", 6, 24, distribution="zeros"),
    )
    return Problem(name="silu", reference=f"judge_problems:{reference}", cases=cases or usual)


def cpp(body: str, *, entry: str = "silu") -> Kernel:
    return Kernel(name="test", language="cpp", source=HEAD + body, entry=entry)


def python(source: str) -> Kernel:
    return Kernel(name="test", language="torch", source=source, entry="silu")
