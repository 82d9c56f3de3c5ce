"""Normalisations other than the library's LayerNorm and RMSNorm, with their gradients."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.gradients import gradient_of
from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Form, paired, problem, real, sizes
from ratchet.judge.problems.suites.scalars import Scalars

EPS = 1e-5
GROUPS = 4
ROWS = sizes((32, 256), (2048, 1024), (16384, 4096))
IMAGES = sizes((2, 16, 8), (8, 64, 28), (64, 256, 56))
NO_TINY = (
    ("shifted", "contiguous"),
    ("heavy_tailed", "strided"),
    ("outliers", "contiguous"),
    ("large", "contiguous"),
)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.group_norm(x, GROUPS, weight, bias, scalars[0]),)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """With the batch's own statistics, as in training."""
    return (F.batch_norm(x, None, None, weight, bias, training=True, eps=scalars[0]),)


def instance_norm(x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.instance_norm(x, weight=weight, bias=bias, eps=scalars[0]),)


def l2_normalise(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + scalars[0]),)


def qk_norm(q: Tensor, k: Tensor, weight: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """RMSNorm over the head dimension of queries and keys, [B, T, H, D] (arXiv:2010.04245)."""
    return tuple(F.rms_norm(one, weight.shape, weight, scalars[0]) for one in (q, k))


def weight_norm(v: Tensor, g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Rows of v at length g (arXiv:1602.07868)."""
    return (v * (g / (v.square().sum(-1) + scalars[0]).sqrt()).unsqueeze(-1),)


_group_norm_gradient = gradient_of(group_norm, inputs=(0, 1, 2))
_batch_norm_gradient = gradient_of(batch_norm, inputs=(0, 1, 2))
_instance_norm_gradient = gradient_of(instance_norm, inputs=(0, 1, 2))
l2_normalise_backward = gradient_of(l2_normalise, inputs=(0,))
qk_norm_backward = gradient_of(qk_norm, inputs=(0, 1, 2), outputs=2)
weight_norm_backward = gradient_of(weight_norm, inputs=(0, 1))


def group_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return _group_norm_gradient(grad, x, weight, torch.zeros_like(weight), scalars)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return _batch_norm_gradient(grad, x, weight, torch.zeros_like(weight), scalars)


def instance_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return _instance_norm_gradient(grad, x, weight, torch.zeros_like(weight), scalars)


_form = partial(Form, module=__name__, sizes=ROWS, ragged=(13, 77), scalars=(EPS,))
_on_images = partial(
    _form,
    make=lambda batch, channels, side: (
        real(batch, channels, side, side),
        real(channels),
        real(channels),
    ),
    sizes=IMAGES,
    ragged=(3, 12, 7),
    variations=NO_TINY,
)


def _heads(batch: int, length: int, heads: int, width: int) -> tuple[TensorSpec, ...]:
    heads_of = real(batch, length, heads, width, dtype="bfloat16")
    return (heads_of, heads_of, real(width, dtype="bfloat16"))


def problems() -> tuple[Problem, ...]:
    """Return every normalisation, forward and backward."""
    rows = _form(name="l2_normalise", make=lambda rows, width: (real(rows, width),))
    weights = _form(
        name="weight_norm",
        make=lambda rows, width: (real(rows, width), real(rows)),
        scalars=(1e-12,),
        variations=NO_TINY,
    )
    images = [_on_images(name=name) for name in ("group_norm", "batch_norm", "instance_norm")]
    heads = _form(
        name="qk_norm",
        make=_heads,
        sizes=sizes((2, 16, 4, 64), (2, 512, 16, 64), (8, 4096, 32, 128)),
        ragged=(1, 7, 3, 24),
        varied=(0, 1),
    )
    # No gradient of a normalisation depends on its bias.
    forms = [*paired([rows, weights]), *paired(images, kept=(0, 1))]
    forms += paired([heads], outputs=lambda *given: _heads(*given)[:2])
    return tuple(map(problem, forms))
