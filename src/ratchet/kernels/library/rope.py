"""Rotary position embedding: `ratchet::rope(x, cos, sin) = x * cos + rotate_half(x) * sin`.

x is [B, H, T, D] of any strides, cos and sin are [T, D] or [B, T, D] (Hugging Face's convention of
halves; arXiv:2104.09864, section 3.4.2). y has x's dtype and, where x is dense, its memory layout.
cos and sin are constants: no gradient flows to them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, references, registry
from ratchet.kernels.library.cases import library_problem, standard_cases
from ratchet.kernels.library.registration import register
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Problem, TensorSpec

ENTRIES = ("rope_forward", "rope_backward")


def _last_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _fake(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


def _run(entry: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = torch.empty_like(x)
    inputs = (_last_contiguous(x), _last_contiguous(cos), _last_contiguous(sin))
    if not (y.stride(-1) == 1 and registry.call(entry, (*inputs, y))):
        y.copy_(getattr(references, entry)(x, cos, sin, ())[0])
    return y


def _forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _run("rope_forward", x, cos, sin)


def _backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _run("rope_backward", grad, cos, sin)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin = inputs
    if cos.requires_grad or sin.requires_grad:
        raise KernelError(
            "cos or sin of ratchet::rope requires a gradient, which the op does not compute: "
            "detach them, or keep the model's own rotary embedding"
        )
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    cos, sin = ctx.saved_tensors
    return torch.ops.ratchet.rope_backward(grad, cos, sin), None, None


register(
    "rope",
    "(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    run=_forward,
    fake=_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "rope_backward",
    "(Tensor grad, Tensor cos, Tensor sin) -> Tensor",
    run=_backward,
    fake=_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return forward and backward for `isa`."""
    return make_kernels("rope", "rope.cpp", ENTRIES, isa)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, at the workload's heads and sequence."""
    return tuple(library_problem(entry, standard_cases(_inputs(shapes))) for entry in ENTRIES)


def _inputs(shapes: WorkloadShapes) -> Any:
    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        batch, heads, length, size = (
            (3, 2, 5, 10)
            if ragged
            else (shapes.batch, shapes.heads, shapes.sequence, shapes.head_dim)
        )
        layout = "contiguous" if distribution in ("zeros", "tiny") else "heads"
        x = TensorSpec(
            shape=(batch, heads, length, size),
            dtype=shapes.dtype,
            distribution=distribution,
            layout=layout,
        )
        shape = (batch, length, size) if distribution == "large" else (length, size)
        table = TensorSpec(
            shape=shape, dtype=shapes.dtype, distribution="uniform", low=-1.0, high=1.0
        )
        return [x, table, table]

    return inputs


LIBRARY_KERNEL = LibraryKernel(
    name="rope",
    summary="rotary position embedding, forward and backward, in one pass each over any layout",
    source_of_idea="arXiv:2104.09864; fused as in Liger-Kernel, arXiv:2410.10989",
    kernels=kernels,
    problems=problems,
)
