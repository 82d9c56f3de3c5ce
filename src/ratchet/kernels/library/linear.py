"""A linear layer in bf16: `ratchet::linear`, and the products of its backward.

    y = x W^T + bias        dx = dy W        dW = dy^T x, dbias = sum of dy over rows

x and weight are bf16 or fp32 (rounded to bf16 during packing); y is bf16, dx has x's dtype, dW
weight's. Sums are fp32 over the whole summed dimension. The three products are three entries,
judged and activated separately: a vendor's library may be the best at some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, registry
from ratchet.kernels.library.cases import standard_cases
from ratchet.kernels.library.registration import NO_TENSOR, out_dtype_of, register
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Problem, TensorSpec

ENTRIES = ("linear_forward", "linear_dgrad", "linear_wgrad")


def as_matrix(tensor: Tensor) -> Tensor:
    """Return [..., C] as [rows, C] with one stride of 1, without a copy if possible."""
    matrix = tensor.reshape(-1, tensor.shape[-1])
    return matrix if 1 in matrix.stride() else matrix.contiguous()


def _half(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.bfloat16()


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, scalars: Sequence[float] = ()
) -> tuple[Tensor, ...]:
    """Compute the entry's reference: y in bf16 (float64 for float64 inputs)."""
    added = _half(bias) if bias.numel() > 0 else None
    return (torch.nn.functional.linear(_half(x), _half(weight), added),)


def linear_dgrad(grad: Tensor, weight: Tensor, scalars: Sequence[float] = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dx in bf16 (float64 for float64 inputs)."""
    return (_half(grad) @ _half(weight),)


def linear_wgrad(grad: Tensor, x: Tensor, scalars: Sequence[float] = ()) -> tuple[Tensor, ...]:
    """Compute the entry's reference: dweight and dbias in bf16 (float64 for float64 inputs)."""
    half = _half(grad)
    total = half.sum(0, dtype=torch.float32 if half.dtype == torch.bfloat16 else half.dtype)
    return half.t() @ _half(x), _half(total)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _linear_fake(x, weight, bias)
    added = NO_TENSOR if bias is None else bias.contiguous()
    tensors = (as_matrix(x), as_matrix(weight), added, y.view(-1, y.shape[-1]))
    if registry.call("linear_forward", tensors):
        return y
    return linear_forward(x, weight, added)[0].contiguous()


def _linear_fake(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.bfloat16)


def _dgrad(grad: Tensor, weight: Tensor, out_dtype: str = "") -> Tensor:
    dx = _dgrad_fake(grad, weight, out_dtype)
    tensors = (as_matrix(grad), as_matrix(weight), dx.view(-1, dx.shape[-1]))
    if registry.call("linear_dgrad", tensors):
        return dx
    return linear_dgrad(grad, weight)[0].to(dx.dtype).contiguous()


def _dgrad_fake(grad: Tensor, weight: Tensor, out_dtype: str = "") -> Tensor:
    dtype = out_dtype_of(out_dtype, torch.bfloat16)
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]), dtype=dtype)


def _wgrad(
    grad: Tensor, x: Tensor, out_dtype: str = "", with_bias: bool = False
) -> tuple[Tensor, Tensor]:
    dweight, dbias = _wgrad_fake(grad, x, out_dtype, with_bias)
    rows, columns = as_matrix(grad), as_matrix(x)
    if registry.call("linear_wgrad", (rows, columns, dweight, dbias)):
        return dweight, dbias
    found, total = linear_wgrad(rows, columns)
    return found.to(dweight.dtype), total.to(dbias.dtype) if with_bias else dbias


def _wgrad_fake(
    grad: Tensor, x: Tensor, out_dtype: str = "", with_bias: bool = False
) -> tuple[Tensor, Tensor]:
    dtype, width = out_dtype_of(out_dtype, torch.bfloat16), grad.shape[-1]
    dweight = grad.new_empty((width, x.shape[-1]), dtype=dtype)
    return dweight, grad.new_empty((width if with_bias else 0,), dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _name(dtype: torch.dtype) -> str:
    return "float32" if dtype == torch.float32 else "bfloat16"


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.ratchet.linear_dgrad(grad, weight, _name(x.dtype))
    with_bias = ctx.bias_dtype is not None and ctx.needs_input_grad[2]
    if ctx.needs_input_grad[1]:
        dweight, total = torch.ops.ratchet.linear_wgrad(grad, x, _name(weight.dtype), with_bias)
        dbias = total.to(ctx.bias_dtype) if with_bias else None
    elif with_bias:
        rows = grad.reshape(-1, grad.shape[-1])
        dbias = rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return dx, dweight, dbias


register(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    run=_linear,
    fake=_linear_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "linear_dgrad",
    '(Tensor grad, Tensor weight, str out_dtype="") -> Tensor',
    run=_dgrad,
    fake=_dgrad_fake,
)
register(
    "linear_wgrad",
    '(Tensor grad, Tensor x, str out_dtype="", bool with_bias=False) -> (Tensor, Tensor)',
    run=_wgrad,
    fake=_wgrad_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return the three products for `isa`; they share one compiled library."""
    return make_kernels("linear", "linear.cpp", ENTRIES, isa)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the size of the feed-forward up projection."""
    return tuple(
        Problem(
            name=entry,
            reference=f"{__name__}:{entry}",
            cases=standard_cases(_inputs(shapes, entry)),
        )
        for entry in ENTRIES
    )


def _inputs(shapes: WorkloadShapes, entry: str) -> Any:
    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        rows, inner, outer = (37, 45, 83) if ragged else (shapes.tokens, shapes.hidden, 0)
        outer = outer or shapes.intermediate
        layout = "transposed" if distribution == "shifted" else "contiguous"
        sizes = {
            "linear_forward": ((rows, inner), (outer, inner)),
            "linear_dgrad": ((rows, outer), (outer, inner)),
            "linear_wgrad": ((rows, outer), (rows, inner)),
        }[entry]
        first = TensorSpec(
            shape=sizes[0], dtype=shapes.dtype, distribution=distribution, layout=layout
        )
        second = TensorSpec(shape=sizes[1], dtype=shapes.dtype)
        bias = TensorSpec(shape=(outer if ragged else 0,), dtype=shapes.dtype)
        return [first, second, bias] if entry == "linear_forward" else [first, second]

    return inputs


LIBRARY_KERNEL = LibraryKernel(
    name="linear",
    summary="the three products of a linear layer in bf16 on AMX or AVX512-BF16, packed, fp32 sums",
    source_of_idea="Goto and van de Geijn, ACM TOMS 34(3), 2008; Van Zee and van de Geijn (BLIS), "
    "ACM TOMS 41(3), 2015",
    kernels=kernels,
    problems=problems,
)
