"""Matrix products with neighbouring operations, and the two products of a backward."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.gradients import gradient_of
from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Form, in_bfloat16, paired, problem, real, sizes
from ratchet.judge.problems.suites.scalars import Scalars

PRODUCTS = sizes((32, 64, 48), (512, 512, 1024), (8192, 4096, 14336))
VALUES = (("shifted", "contiguous"), ("heavy_tailed", "contiguous"), ("large", "transposed"))
EXPERTS = 4


def linear_gelu(x: Tensor, w: Tensor, b: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """x: [N, K], w: [M, K], b: [M]."""
    return (F.gelu(F.linear(x, w, b)),)


def linear_residual(
    x: Tensor, w: Tensor, b: Tensor, residual: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return (F.linear(x, w, b) + residual,)


def linear_swiglu(x: Tensor, gate: Tensor, up: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.silu(F.linear(x, gate)) * F.linear(x, up),)


def norm_linear(x: Tensor, weight: Tensor, w: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """RMSNorm, then a product, as at the head of every block."""
    return (F.linear(F.rms_norm(x, weight.shape, weight, scalars[0]), w),)


def linear_low_rank(
    x: Tensor, w: Tensor, down: Tensor, up: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """A frozen weight and an adapter, LoRA (arXiv:2106.09685), scale scalars[0]."""
    return (F.linear(x, w) + scalars[0] * F.linear(F.linear(x, down), up),)


def grouped_linear(x: Tensor, w: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """x: [E, N, K], w: [E, M, K]: each expert's tokens by its own weight."""
    return (torch.bmm(x, w.transpose(1, 2)),)


def input_gradient(grad: Tensor, w: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (grad @ w,)


def weight_gradient(grad: Tensor, x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The gradients of the weight and the bias, from one read of grad."""
    return grad.transpose(0, 1) @ x, grad.sum(0)


def linear_residual_backward(
    grad: Tensor, x: Tensor, w: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """The gradients of x, w and the bias; the residual's gradient is `grad` itself."""
    return grad @ w, grad.transpose(0, 1) @ x, grad.sum(0)


grouped_linear_backward = gradient_of(grouped_linear, inputs=(0, 1))
linear_gelu_backward = gradient_of(linear_gelu, inputs=(0, 1, 2))
linear_swiglu_backward = gradient_of(linear_swiglu, inputs=(0, 1, 2))
norm_linear_backward = gradient_of(norm_linear, inputs=(0, 1, 2))
linear_low_rank_backward = gradient_of(linear_low_rank, inputs=(0, 2, 3))


_form = partial(
    Form,
    module=__name__,
    sizes=PRODUCTS,
    ragged=(14, 29, 19),
    task="any",
    variations=VALUES,
)


def _answer(n: int, k: int, m: int) -> tuple[TensorSpec, ...]:
    return (real(n, m),)


def problems() -> tuple[Problem, ...]:
    """Return every product; their task is `any`, since a library's GEMM is a fair answer."""
    with_gradient = [
        _form(name="linear_gelu", make=lambda n, k, m: (real(n, k), real(m, k), real(m))),
        _form(name="linear_swiglu", make=lambda n, k, m: (real(n, k), real(m, k), real(m, k))),
        _form(
            name="norm_linear",
            make=lambda n, k, m: (real(n, k), real(k), real(m, k)),
            scalars=(1e-5,),
        ),
        _form(
            name="linear_low_rank",
            make=lambda n, k, m: (real(n, k), real(m, k), real(8, k), real(m, 8)),
            scalars=(2.0,),
        ),
    ]
    residual = _form(
        name="linear_residual",
        make=lambda n, k, m: (real(n, k), real(m, k), real(m), real(n, m)),
    )
    grouped = _form(
        name="grouped_linear",
        make=lambda n, k, m: (real(EXPERTS, n // 2, k), real(EXPERTS, m, k)),
    )
    forms = [
        *paired(with_gradient, outputs=_answer),
        *paired([residual], outputs=_answer, kept=(0, 1)),
        *paired([grouped], outputs=lambda n, k, m: (real(EXPERTS, n // 2, m),)),
        _form(name="input_gradient", make=lambda n, k, m: (real(n, m), real(m, k))),
        _form(name="weight_gradient", make=lambda n, k, m: (real(n, m), real(n, k))),
    ]
    return tuple(map(problem, (*forms, *map(in_bfloat16, forms))))
