"""RMSNorm and LayerNorm in plain torch, and the problems of their kernels.

As in all of these files, a reference takes its tensors in the order of the C interface and a tuple
of scalars, computes in float32 (in float64 for float64 inputs) and returns a tuple of outputs in
the dtypes of the inputs. It is the judge's oracle in float64, and the op's fallback.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.precision import wide
from ratchet.judge.problems.suites.scalars import Scalars
from ratchet.judge.problems.suites.shipped.cases import WorkloadShapes, problem_of, standard_cases

FORMS = ("{}_forward", "{}_backward", "add_{}_forward", "add_{}_backward")
RMS_NORM = tuple(form.format("rms_norm") for form in FORMS)
LAYER_NORM = tuple(form.format("layer_norm") for form in FORMS)


def _hat(x: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    if centred:
        x = x - x.mean(-1, keepdim=True)
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * inverse, inverse


def norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype, centred: bool
) -> Tensor:
    """RMSNorm (arXiv:1910.07467) or, `centred`, LayerNorm (arXiv:1607.06450) of the last dim.

    The result is contiguous for any layout of `x`, as the ops promise.
    """
    hat, _ = _hat(wide(x), eps, centred)
    y = hat * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    return y.to(dtype).contiguous()


def norm_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `norm` in h, weight and bias; `grad_h` is the one that reaches h directly."""
    dy = wide(grad)
    hat, inverse = _hat(wide(h), eps, centred)
    scaled = dy * wide(weight)
    inner = scaled - hat * (scaled * hat).mean(-1, keepdim=True)
    if centred:
        inner = inner - scaled.mean(-1, keepdim=True)
    dh = inner * inverse
    if grad_h is not None:
        dh = dh + wide(grad_h)
    leading = tuple(range(h.dim() - 1))
    dweight = (dy * hat).sum(leading) if leading else dy * hat
    dbias = dy.sum(leading) if leading else dy
    return dh.to(h.dtype).contiguous(), dweight.to(weight.dtype), dbias


def rms_norm_forward(x: Tensor, weight: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (norm(x, weight, None, scalars[0], x.dtype, False),)


def add_rms_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    h = x + residual
    return norm(h, weight, None, scalars[0], h.dtype, False), h


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return norm_backward(grad, None, x, weight, scalars[0], False)[:2]


def add_rms_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return norm_backward(grad, _optional(grad_h), h, weight, scalars[0], False)[:2]


def layer_norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return (norm(x, weight, _optional(bias), scalars[0], x.dtype, True),)


def add_layer_norm_forward(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    h = x + residual
    return norm(h, weight, _optional(bias), scalars[0], h.dtype, True), h


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    dx, dweight, dbias = norm_backward(grad, None, x, weight, scalars[0], True)
    return dx, dweight, dbias.to(weight.dtype)


def add_layer_norm_backward(
    grad: Tensor, grad_h: Tensor, h: Tensor, weight: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    dh, dweight, dbias = norm_backward(grad, _optional(grad_h), h, weight, scalars[0], True)
    return dh, dweight, dbias.to(weight.dtype)


def _optional(tensor: Tensor) -> Tensor | None:
    return tensor if tensor.numel() > 0 else None


def rms_norm_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return tuple(_problem(shapes, entry, 1e-6, bias=False) for entry in RMS_NORM)


def layer_norm_problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return tuple(_problem(shapes, entry, 1e-5, bias=True) for entry in LAYER_NORM)


def _problem(shapes: WorkloadShapes, entry: str, eps: float, *, bias: bool) -> Problem:
    """Return an entry's problem.

    The inputs are row tensors, one more for a backward and one more for the residual add, then the
    weight, and the bias of a forward that has one.
    """
    forward = entry.endswith("forward")
    row_count = (1 if forward else 2) + entry.startswith("add")

    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        shape = (13, 77) if ragged else (shapes.tokens, shapes.hidden)
        layout = "strided" if distribution == "shifted" else "contiguous"
        rows = TensorSpec(shape=shape, dtype=shapes.dtype, distribution=distribution, layout=layout)
        vector = TensorSpec(shape=shape[-1:], dtype=shapes.weight_dtype)
        return [rows] * row_count + [vector] * (1 + (bias and forward))

    return problem_of(__name__, entry, standard_cases(inputs, (eps,)))
