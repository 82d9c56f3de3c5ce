"""RMSNorm, with or without the residual add: `ratchet::rms_norm`, `ratchet::add_rms_norm`.

    y = x / sqrt(mean(x^2) + eps) * weight          (arXiv:1910.07467, equation 4)

x is fp32 or bf16, and so is weight; sums are fp32. Only x (or h) and weight are saved: recomputing
the inverse deviation is cheaper than reading it.
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
    "rms_norm_forward",
    "rms_norm_backward",
    "add_rms_norm_forward",
    "add_rms_norm_backward",
)
EPS = 1e-6


def _forward(x: Tensor, weight: Tensor, eps: float, out_dtype: str = "") -> Tensor:
    dtype = out_dtype_of(out_dtype, x.dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    if registry.call("rms_norm_forward", (as_rows(x), weight.contiguous(), y), (eps,)):
        return y
    return references.norm(x, weight, None, eps, dtype, False)


def _forward_fake(x: Tensor, weight: Tensor, eps: float, out_dtype: str = "") -> Tensor:
    return torch.empty(x.shape, dtype=out_dtype_of(out_dtype, x.dtype), device=x.device)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    outputs = _backward_fake(grad, x, weight, eps)
    inputs = (as_rows(grad), as_rows(x), weight.contiguous())
    if registry.call("rms_norm_backward", (*inputs, *outputs), (eps,)):
        return outputs
    return references.norm_backward(grad, None, x, weight, eps, False)[:2]


def _backward_fake(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    x, weight = ctx.saved_tensors
    dx, dweight = torch.ops.ratchet.rms_norm_backward(grad, x, weight, ctx.eps)
    return dx, dweight, None, None


def _add_forward(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out_dtype: str = ""
) -> tuple[Tensor, Tensor]:
    y, h = _add_forward_fake(x, residual, weight, eps, out_dtype)
    inputs = (as_rows(x), as_rows(residual), weight.contiguous())
    if registry.call("add_rms_norm_forward", (*inputs, y, h), (eps,)):
        return y, h
    h = (x + residual).contiguous()
    return references.norm(h, weight, None, eps, y.dtype, False), h


def _add_forward_fake(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out_dtype: str = ""
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, residual.dtype)
    y = torch.empty(x.shape, dtype=out_dtype_of(out_dtype, dtype), device=x.device)
    return y, torch.empty(x.shape, dtype=dtype, device=x.device)


def _add_backward(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    outputs = _backward_fake(grad, h, weight, eps)
    through = NO_TENSOR if grad_h is None else as_rows(grad_h)
    inputs = (as_rows(grad), through, as_rows(h), weight.contiguous())
    if registry.call("add_rms_norm_backward", (*inputs, *outputs), (eps,)):
        return outputs
    return references.norm_backward(grad, grad_h, h, weight, eps, False)[:2]


def _add_backward_fake(
    grad: Tensor, grad_h: Tensor | None, h: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _backward_fake(grad, h, weight, eps)


def _add_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, residual, weight, ctx.eps, _ = inputs
    ctx.dtypes = x.dtype, residual.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], weight)


def _add_differentiate(
    ctx: Any, grad: Tensor | None, grad_h: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    h, weight = ctx.saved_tensors
    dh, dweight = grad_h, None
    if grad is not None:
        dh, dweight = torch.ops.ratchet.add_rms_norm_backward(grad, grad_h, h, weight, ctx.eps)
    if dh is None:
        return None, None, None, None, None
    return dh.to(ctx.dtypes[0]), dh.to(ctx.dtypes[1]), dweight, None, None


register(
    "rms_norm",
    '(Tensor x, Tensor weight, float eps, str out_dtype="") -> Tensor',
    run=_forward,
    fake=_forward_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "rms_norm_backward",
    "(Tensor grad, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    run=_backward,
    fake=_backward_fake,
)
register(
    "add_rms_norm",
    '(Tensor x, Tensor residual, Tensor weight, float eps, str out_dtype="") -> (Tensor, Tensor)',
    run=_add_forward,
    fake=_add_forward_fake,
    setup_context=_add_save,
    backward=_add_differentiate,
)
register(
    "add_rms_norm_backward",
    "(Tensor grad, Tensor? grad_h, Tensor h, Tensor weight, float eps) -> (Tensor, Tensor)",
    run=_add_backward,
    fake=_add_backward_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return forward and backward, with and without the residual add, for `isa`."""
    return make_kernels("rms_norm", "rms_norm.cpp", ENTRIES, isa)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's rows and hidden size."""
    return norm_problems(shapes, ENTRIES, EPS, bias=False)


LIBRARY_KERNEL = LibraryKernel(
    name="rms_norm",
    summary="RMSNorm with the residual add, forward and backward, each in one pass over memory",
    source_of_idea="arXiv:1910.07467; fused as in Liger-Kernel, arXiv:2410.10989",
    kernels=kernels,
    problems=problems,
)
