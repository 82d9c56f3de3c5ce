"""LayerNorm, with or without the residual add: `ratchet::layer_norm`, `ratchet::add_layer_norm`.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias          (arXiv:1607.06450, equation 4)

x is fp32 or bf16, and so are weight and bias. Sums are fp32; the variance takes two passes over a
row in cache. Only x (or h) and weight are saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, references, registry
from ratchet.kernels.library.cases import norm_problems
from ratchet.kernels.library.registration import NO_TENSOR, as_rows, out_dtype_of, register
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Problem

ENTRIES = (
    "layer_norm_forward",
    "layer_norm_backward",
    "add_layer_norm_forward",
    "add_layer_norm_backward",
)
EPS = 1e-5
Three = tuple[Tensor, Tensor, Tensor]


def _vectors(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return weight.contiguous(), NO_TENSOR if bias is None else bias.contiguous()


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out_dtype: str = ""
) -> Tensor:
    y = _forward_fake(x, weight, bias, eps, out_dtype)
    if registry.call("layer_norm_forward", (as_rows(x), *_vectors(weight, bias), y), (eps,)):
        return y
    return references.norm(x, weight, bias, eps, y.dtype, True)


def _forward_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out_dtype: str = ""
) -> Tensor:
    return torch.empty(x.shape, dtype=out_dtype_of(out_dtype, x.dtype), device=x.device)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, eps: float) -> Three:
    outputs = _backward_fake(grad, x, weight, has_bias, eps)
    inputs = (as_rows(grad), as_rows(x), weight.contiguous())
    if registry.call("layer_norm_backward", (*inputs, *outputs), (eps,)):
        return outputs
    found = references.norm_backward(grad, None, x, weight, eps, True)
    return _without_bias(found, outputs[2])


def _without_bias(found: Three, dbias: Tensor) -> Three:
    """Return the composite's gradients, with `dbias` in the op's declared form."""
    return found[0], found[1], found[2].to(dbias.dtype) if dbias.numel() else dbias


def _backward_fake(grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, eps: float) -> Three:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    bias_shape = weight.shape if has_bias else (0,)
    return dx, dweight, torch.empty(bias_shape, dtype=weight.dtype, device=weight.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.eps, _ = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, dweight, dbias = torch.ops.ratchet.layer_norm_backward(
        grad, x, weight, ctx.bias_dtype is not None, ctx.eps
    )
    return dx, dweight, None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype), None, None


def _add_forward(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out_dtype: str = "",
) -> tuple[Tensor, Tensor]:
    y, h = _add_forward_fake(x, residual, weight, bias, eps, out_dtype)
    inputs = (as_rows(x), as_rows(residual), *_vectors(weight, bias))
    if registry.call("add_layer_norm_forward", (*inputs, y, h), (eps,)):
        return y, h
    h = (x + residual).contiguous()
    return references.norm(h, weight, bias, eps, y.dtype, True), h


def _add_forward_fake(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    out_dtype: str = "",
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, residual.dtype)
    y = torch.empty(x.shape, dtype=out_dtype_of(out_dtype, dtype), device=x.device)
    return y, torch.empty(x.shape, dtype=dtype, device=x.device)


def _add_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, has_bias: bool, eps: float
) -> Three:
    outputs = _backward_fake(grad, h, weight, has_bias, eps)
    through = NO_TENSOR if grad_h is None else as_rows(grad_h)
    inputs = (as_rows(grad), through, as_rows(h), weight.contiguous())
    if registry.call("add_layer_norm_backward", (*inputs, *outputs), (eps,)):
        return outputs
    found = references.norm_backward(grad, grad_h, h, weight, eps, True)
    return _without_bias(found, outputs[2])


def _add_backward_fake(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, has_bias: bool, eps: float
) -> Three:
    return _backward_fake(grad, h, weight, has_bias, eps)


def _add_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, residual, weight, bias, ctx.eps, _ = inputs
    ctx.dtypes = x.dtype, residual.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], weight)


def _add_differentiate(
    ctx: Any, grad: Tensor | None, grad_h: Tensor | None
) -> tuple[Tensor | None, ...]:
    h, weight = ctx.saved_tensors
    if grad is None and grad_h is None:
        return None, None, None, None, None, None
    dh, dweight, dbias = grad_h, None, None
    if grad is not None:
        dh, dweight, dbias = torch.ops.ratchet.add_layer_norm_backward(
            grad, grad_h, h, weight, ctx.bias_dtype is not None, ctx.eps
        )
    dbias = None if dbias is None or ctx.bias_dtype is None else dbias.to(ctx.bias_dtype)
    assert dh is not None
    return dh.to(ctx.dtypes[0]), dh.to(ctx.dtypes[1]), dweight, dbias, None, None


register(
    "layer_norm",
    '(Tensor x, Tensor weight, Tensor? bias, float eps, str out_dtype="") -> Tensor',
    run=_forward,
    fake=_forward_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "layer_norm_backward",
    "(Tensor grad, Tensor x, Tensor weight, bool has_bias, float eps) -> (Tensor, Tensor, Tensor)",
    run=_backward,
    fake=_backward_fake,
)
register(
    "add_layer_norm",
    "(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps, "
    'str out_dtype="") -> (Tensor, Tensor)',
    run=_add_forward,
    fake=_add_forward_fake,
    setup_context=_add_save,
    backward=_add_differentiate,
)
register(
    "add_layer_norm_backward",
    "(Tensor grad, Tensor? grad_h, Tensor h, Tensor weight, bool has_bias, float eps) "
    "-> (Tensor, Tensor, Tensor)",
    run=_add_backward,
    fake=_add_backward_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return forward and backward, with and without the residual add, for `isa`."""
    return make_kernels("layer_norm", "layer_norm.cpp", ENTRIES, isa)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return norm_problems(shapes, ENTRIES, EPS, bias=True)


LIBRARY_KERNEL = LibraryKernel(
    name="layer_norm",
    summary="LayerNorm with the residual add, forward and backward, each in one pass over memory",
    source_of_idea="arXiv:1607.06450; fused as in Liger-Kernel, arXiv:2410.10989",
    kernels=kernels,
    problems=problems,
)
