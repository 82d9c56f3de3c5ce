"""Element-wise activations, plain and gated, with their gradients."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.gradients import gradient_of
from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import Form, paired, problem, real, sizes, whole
from ratchet.judge.problems.suites.scalars import Scalars

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


def problems() -> tuple[Problem, ...]:
    """Return every activation, forward and backward."""
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
