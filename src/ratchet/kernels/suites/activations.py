"""Element-wise activations, plain and gated, with their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.kernels.gradients import gradient_of
from ratchet.kernels.problem import Problem, TensorSpec
from ratchet.kernels.suites.forms import Form, backward, problem, real, sizes
from ratchet.kernels.suites.scalars import Scalars

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


def _form(name: str, tensors: int = 1, scalars: tuple[float, ...] = ()) -> Form:
    dtype = "bfloat16" if name in BF16_NAMES else "float32"

    def make(rows: int, width: int) -> tuple[TensorSpec, ...]:
        return (real(rows, width, dtype=dtype),) * tensors

    return Form(
        name=name,
        module=__name__,
        make=make,
        sizes=PLAIN,
        ragged=(13, 77),
        scalars=scalars,
        varied=tuple(range(tensors)),
    )


def _biased(name: str, extra: int, scalars: tuple[float, ...] = ()) -> Form:
    dtype = "bfloat16" if name in BF16_NAMES else "float32"

    def make(rows: int, width: int) -> tuple[TensorSpec, ...]:
        x, bias = real(rows, width, dtype=dtype), real(width, dtype=dtype)
        kept = TensorSpec(
            shape=(rows, width), dtype=dtype, distribution="integers", low=0.0, high=2.0
        )
        return (x, bias, *((x, kept) if extra else ()))

    return Form(
        name=name, module=__name__, make=make, sizes=PLAIN, ragged=(13, 77), scalars=scalars
    )


def _like_first(form: Form, *, halved: bool = False) -> Form:
    """Return the gradient of a form whose output is shaped like its first input."""

    def outputs(rows: int, width: int) -> tuple[TensorSpec, ...]:
        first = form.make(rows, width)[0]
        if not halved:
            return (first,)
        return (real(rows, first.shape[-1] // 2, dtype=first.dtype),)

    return backward(form, outputs=outputs)


def problems() -> tuple[Problem, ...]:
    """Return every activation, forward and backward."""
    plain = ("gelu", "gelu_tanh", "silu", "squared_relu", "mish", "softplus", "hard_swish")
    forms = [_form(name) for name in plain]
    forms += [_form("elu", scalars=(0.7,)), _form("glu", 2), _form("reglu", 2)]
    forms.append(_biased("bias_gelu", 0))
    packed = Form(
        name="swiglu_packed",
        module=__name__,
        make=lambda rows, width: (real(rows, 2 * width, dtype="bfloat16"),),
        sizes=PLAIN,
        ragged=(13, 77),
    )
    found = [(form, _like_first(form)) for form in forms]
    dropout = _biased("bias_dropout_residual", 2, (0.9,))
    found.append(
        (dropout, backward(dropout, outputs=lambda *given: dropout.make(*given)[:1], kept=(3,)))
    )
    found.append((packed, _like_first(packed, halved=True)))
    return tuple(problem(form) for pair in found for form in pair)
