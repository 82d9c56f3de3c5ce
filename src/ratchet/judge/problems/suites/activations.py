"""Element-wise activations, plain and gated, with their gradients."""

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
    paired,
    problem,
    real,
    sizes,
    whole,
)

PLAIN = sizes((32, 256), (1024, 2048), (8192, 14336))
BF16_NAMES = ("gelu", "silu", "bias_gelu")


def gelu(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.gelu(x),)


def gelu_tanh(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.gelu(x, approximate="tanh"),)


def silu(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.silu(x),)


def squared_relu(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Primer, arXiv:2109.08668."""
    return (F.relu(x).square(),)


def mish(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.mish(x),)


def softplus(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.softplus(x),)


def hard_swish(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.hardswish(x),)


def elu(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.elu(x, alpha=scalars[0]),)


def bias_gelu(x: Tensor, bias: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.gelu(x + bias),)


def bias_dropout_residual(
    x: Tensor, bias: Tensor, residual: Tensor, kept: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Dropout with a given mask (1 kept, 0 dropped), at keep rate scalars[0]."""
    return (residual + (x + bias) * kept / scalars[0],)


def glu(gate: Tensor, up: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (torch.sigmoid(gate) * up,)


def reglu(gate: Tensor, up: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.relu(gate) * up,)


def swiglu_packed(both: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Gate and value side by side, as a single matrix product returns them."""
    gate, up = both.chunk(2, dim=-1)
    return (F.silu(gate) * up,)


gelu_backward = gradient_of(gelu, inputs=(0,))
gelu_tanh_backward = gradient_of(gelu_tanh, inputs=(0,))
silu_backward = gradient_of(silu, inputs=(0,))
squared_relu_backward = gradient_of(squared_relu, inputs=(0,))
mish_backward = gradient_of(mish, inputs=(0,))
softplus_backward = gradient_of(softplus, inputs=(0,))
hard_swish_backward = gradient_of(hard_swish, inputs=(0,))
elu_backward = gradient_of(elu, inputs=(0,))
bias_gelu_backward = gradient_of(bias_gelu, inputs=(0, 1))
glu_backward = gradient_of(glu, inputs=(0, 1))
reglu_backward = gradient_of(reglu, inputs=(0, 1))
swiglu_packed_backward = gradient_of(swiglu_packed, inputs=(0,))


def bias_dropout_residual_backward(
    grad: Tensor, kept: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """The gradients of x and the bias; the residual's gradient is `grad` itself."""
    dx = grad * kept / scalars[0]
    return dx, dx.sum(0)


_form = partial(Form, module=__name__, sizes=PLAIN, ragged=(13, 77))


def _elements(name: str, tensors: int = 1, scalars: tuple[float, ...] = ()) -> Form:
    dtype = "bfloat16" if name in BF16_NAMES else "float32"
    return _form(
        name=name,
        make=lambda rows, width: (real(rows, width, dtype=dtype),) * tensors,
        scalars=scalars,
        varied=tuple(range(tensors)),
    )


def _dropped(rows: int, width: int) -> tuple[TensorSpec, ...]:
    x = real(rows, width)
    return (x, real(width), x, whole(rows, width, below=2, dtype="float32"))


def activation_problems() -> tuple[Problem, ...]:
    plain = ("gelu", "gelu_tanh", "silu", "squared_relu", "mish", "softplus", "hard_swish")
    half = partial(real, dtype="bfloat16")
    forms = [_elements(name) for name in plain]
    forms += [_elements("elu", scalars=(0.7,)), _elements("glu", 2), _elements("reglu", 2)]
    forms.append(_form(name="bias_gelu", make=lambda rows, width: (half(rows, width), half(width))))
    dropout = _form(name="bias_dropout_residual", make=_dropped, scalars=(0.9,))
    packed = _form(name="swiglu_packed", make=lambda rows, width: (half(rows, 2 * width),))
    found = [
        *paired(forms),
        *paired([dropout], kept=(3,)),
        *paired([packed], outputs=lambda rows, width: (half(rows, width),)),
    ]
    return tuple(map(problem, found))


# Normalisations other than the library's LayerNorm and RMSNorm, with their gradients.

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


_norm_form = partial(Form, module=__name__, sizes=ROWS, ragged=(13, 77), scalars=(EPS,))
_on_images = partial(
    _norm_form,
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


def normalisation_problems() -> tuple[Problem, ...]:
    rows = _norm_form(name="l2_normalise", make=lambda rows, width: (real(rows, width),))
    weights = _norm_form(
        name="weight_norm",
        make=lambda rows, width: (real(rows, width), real(rows)),
        scalars=(1e-12,),
        variations=NO_TINY,
    )
    images = [_on_images(name=name) for name in ("group_norm", "batch_norm", "instance_norm")]
    heads = _norm_form(
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
