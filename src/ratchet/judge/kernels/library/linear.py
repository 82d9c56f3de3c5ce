"""A linear layer in fp32 or bf16: `ratchet::linear`, and the products of its backward.

    y = x W^T + bias        dx = dy W        dW = dy^T x, dbias = sum of dy over rows

If x and weight are both fp32, so are the products and y; the AMX and AVX512-BF16 variants decline
them. Otherwise an fp32 operand is rounded to bf16 during packing, and y is bf16. dx has x's dtype,
dW weight's. Sums are fp32 over the whole summed dimension. The three products are three entries,
judged and activated separately: a vendor's library may be the best at some of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.judge.kernels.custom_op import Given, declare_op, or_none, out_dtype_of
from ratchet.judge.kernels.library.sources import LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped import linear as reference
from ratchet.judge.problems.suites.shipped.linear import (
    ENTRIES,
    linear_problems,
    product_dtype,
)


def as_matrix(tensor: Tensor) -> Tensor:
    """Return [..., C] as [rows, C] with one stride of 1, without a copy if possible."""
    matrix = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return matrix if 1 in matrix.stride() else matrix.contiguous()


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Given:
    return (as_matrix(x), as_matrix(weight), or_none(bias)), ()


def _output(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=product_dtype(x, weight))


def _two(first: Tensor, second: Tensor, *_: object) -> Given:
    return (as_matrix(first), as_matrix(second)), ()


def _dx(grad: Tensor, weight: Tensor, out_dtype: str = "") -> Tensor:
    dtype = out_dtype_of(out_dtype, product_dtype(grad, weight))
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]), dtype=dtype)


def _dweight(
    grad: Tensor, x: Tensor, out_dtype: str = "", with_bias: bool = False
) -> tuple[Tensor, Tensor]:
    dtype, width = out_dtype_of(out_dtype, product_dtype(grad, x)), grad.shape[-1]
    dweight = grad.new_empty((width, x.shape[-1]), dtype=dtype)
    return dweight, grad.new_empty((width if with_bias else 0,), dtype=dtype)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
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


declare_op(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    entry="linear_forward",
    inputs=_forward,
    outputs=_output,
    reference=reference.linear_forward,
    flat=True,
    autograd=(_save, _differentiate),
)
declare_op(
    "linear_dgrad",
    '(Tensor grad, Tensor weight, str out_dtype="") -> Tensor',
    entry="linear_dgrad",
    inputs=_two,
    outputs=_dx,
    reference=reference.linear_dgrad,
    flat=True,
)
declare_op(
    "linear_wgrad",
    '(Tensor grad, Tensor x, str out_dtype="", bool with_bias=False) -> (Tensor, Tensor)',
    entry="linear_wgrad",
    inputs=_two,
    outputs=_dweight,
    reference=reference.linear_wgrad,
)

LINEAR = LibraryKernel(
    name="linear",
    module=__name__,
    problems=linear_problems,
    summary="the three products of a linear layer, packed for the caches, with fp32 sums",
    source_of_idea="Goto and van de Geijn, ACM TOMS 34(3), 2008; Van Zee and van de Geijn (BLIS), "
    "ACM TOMS 41(3), 2015",
    variants=(Variant(language="cpp", file="linear", entries=ENTRIES["linear"]),),
    acts_on=("matmul",),
    examples={
        "linear": OpExample(
            arguments="x(8, 64, dtype=torch.bfloat16), x(96, 64, dtype=torch.bfloat16), None",
            expected="F.linear(*a)",
            tolerance=3e-2,
        ),
    },
)
