"""Convolutions with the operations that follow them in a network, and their gradients."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.gradients import gradient_of
from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Form, in_bfloat16, paired, problem, real, sizes
from ratchet.judge.problems.suites.scalars import Scalars

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


_form = partial(Form, module=__name__, ragged=(2, 5, 11), variations=SHAPED)
_on_images = partial(_form, sizes=IMAGES, task="any")


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


def problems() -> tuple[Problem, ...]:
    """Return every convolution, forward and backward."""
    forms = paired(
        [
            _form(
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
