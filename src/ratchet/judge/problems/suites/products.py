"""Matrix products with neighbouring operations, and the two products of a backward."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    Scalars,
    gradient_of,
    in_bfloat16,
    paired,
    problem,
    real,
    sizes,
)

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


def product_problems() -> tuple[Problem, ...]:
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


# Convolutions with the operations that follow them in a network, and their gradients.

TAPS = 4
SEQUENCES = sizes((2, 32, 32), (4, 512, 512), (8, 4096, 4096))
IMAGES = sizes((1, 8, 12), (4, 32, 28), (64, 256, 56))
FP32_ONLY = ("pointwise_residual_backward",)
"""Gradients in fp32 only. In bf16 the product is rounded before the residual is added, so some sums
become 0 or change their sign, and torch's gradient is wrong. The bf16 problem gets the output."""
SHAPED = (("shifted", "contiguous"), ("heavy_tailed", "contiguous"), ("large", "contiguous"))


def causal_depthwise(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """x: [B, C, T], weight: [C, 4]; SiLU after it, as in Mamba (arXiv:2312.00752)."""
    padded = F.pad(x, (TAPS - 1, 0))
    return (F.silu(F.conv1d(padded, weight.unsqueeze(1), bias, groups=x.shape[1])),)


def conv_bias_relu(x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """x: [B, C, S, S], weight: [C, C, 3, 3]."""
    return (F.relu(F.conv2d(x, weight, bias, padding=1)),)


def conv_scale_silu(
    x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """A normalisation folded into scale and shift, then SiLU."""
    y = F.conv2d(x, weight, padding=1)
    return (F.silu(y * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)),)


def pointwise_residual(
    x: Tensor, weight: Tensor, residual: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return (F.relu(F.conv2d(x, weight) + residual),)


def pointwise_residual_bf16_backward(
    grad: Tensor, y: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """The gradients of x, the weight and the residual; `y` is the output, which a step keeps."""
    kept = torch.where(y > 0, grad, torch.zeros_like(grad))
    return (*_pointwise_gradient(kept, x, weight, scalars), kept)


def _pointwise_product(x: Tensor, weight: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.conv2d(x, weight),)


_pointwise_gradient = gradient_of(_pointwise_product, inputs=(0, 1))
causal_depthwise_backward = gradient_of(causal_depthwise, inputs=(0, 1, 2))
conv_bias_relu_backward = gradient_of(conv_bias_relu, inputs=(0, 1, 2))
conv_scale_silu_backward = gradient_of(conv_scale_silu, inputs=(0, 1, 2, 3))
pointwise_residual_backward = gradient_of(pointwise_residual, inputs=(0, 1, 2))


_convolution_form = partial(Form, module=__name__, ragged=(2, 5, 11), variations=SHAPED)
_on_images = partial(_convolution_form, sizes=IMAGES, task="any")


def _image(batch: int, channels: int, side: int) -> tuple[TensorSpec, ...]:
    return (real(batch, channels, side, side), real(channels, channels, 3, 3), real(channels))


def _scaled(batch: int, channels: int, side: int) -> tuple[TensorSpec, ...]:
    return (*_image(batch, channels, side), real(channels))


def _pointwise(batch: int, channels: int, side: int) -> tuple[TensorSpec, ...]:
    x = real(batch, channels, side, side)
    return (x, real(channels, channels, 1, 1), x)


def _pointwise_kept(batch: int, channels: int, side: int) -> tuple[TensorSpec, ...]:
    x = real(batch, channels, side, side, dtype="bfloat16")
    return (x, x, x, real(channels, channels, 1, 1, dtype="bfloat16"))


def convolution_problems() -> tuple[Problem, ...]:
    forms = paired(
        [
            _convolution_form(
                name="causal_depthwise",
                make=lambda batch, channels, length: (
                    real(batch, channels, length),
                    real(channels, TAPS),
                    real(channels),
                ),
                sizes=SEQUENCES,
            ),
            _on_images(name="conv_bias_relu", make=_image),
            _on_images(name="conv_scale_silu", make=_scaled),
            _on_images(name="pointwise_residual", make=_pointwise),
        ]
    )
    low = [in_bfloat16(form) for form in forms if form.name not in FP32_ONLY]
    low.append(_on_images(name="pointwise_residual_bf16_backward", make=_pointwise_kept))
    return tuple(map(problem, (*forms, *low)))
