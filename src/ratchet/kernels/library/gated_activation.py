"""The gate of SwiGLU and GeGLU: `ratchet::gated_activation(gate, up, kind) = act(gate) * up`.

kind is "silu", "gelu" or "gelu_tanh" (arXiv:2002.05202). gate and up are fp32 or bf16; the result
has their common dtype. Only gate and up are saved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, references, registry
from ratchet.kernels.library.cases import library_problem, standard_cases
from ratchet.kernels.library.references import KINDS
from ratchet.kernels.library.registration import as_rows, register
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Problem, TensorSpec

ENTRIES = ("gated_activation_forward", "gated_activation_backward")


def _code(kind: str) -> tuple[float]:
    if kind not in KINDS:
        raise KernelError(f"unknown activation {kind!r}: use one of {', '.join(KINDS)}")
    return (float(KINDS.index(kind)),)


def _forward(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    y, scalars = _forward_fake(gate, up, kind), _code(kind)
    if registry.call("gated_activation_forward", (as_rows(gate), as_rows(up), y), scalars):
        return y
    return references.gated_activation_forward(gate, up, scalars)[0].contiguous()


def _forward_fake(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return torch.empty(gate.shape, dtype=dtype, device=gate.device)


def _backward(grad: Tensor, gate: Tensor, up: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    outputs, scalars = _backward_fake(grad, gate, up, kind), _code(kind)
    inputs = (as_rows(grad), as_rows(gate), as_rows(up))
    if registry.call("gated_activation_backward", (*inputs, *outputs), scalars):
        return outputs
    dgate, dup = references.gated_activation_backward(grad, gate, up, scalars)
    return dgate.contiguous(), dup.contiguous()


def _backward_fake(grad: Tensor, gate: Tensor, up: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    return dgate, torch.empty(up.shape, dtype=up.dtype, device=up.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.kind = inputs
    ctx.save_for_backward(gate, up)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    gate, up = ctx.saved_tensors
    dgate, dup = torch.ops.ratchet.gated_activation_backward(grad, gate, up, ctx.kind)
    return dgate, dup, None


register(
    "gated_activation",
    "(Tensor gate, Tensor up, str kind) -> Tensor",
    run=_forward,
    fake=_forward_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "gated_activation_backward",
    "(Tensor grad, Tensor gate, Tensor up, str kind) -> (Tensor, Tensor)",
    run=_backward,
    fake=_backward_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return forward and backward for `isa`."""
    return make_kernels("gated_activation", "gated_activation.cpp", ENTRIES, isa)


def problems(shapes: WorkloadShapes) -> tuple[Problem, ...]:
    """Return one problem per entry, of every kind, at the workload's rows and intermediate size."""
    return tuple(
        library_problem(
            entry,
            [case for kind in KINDS for case in _cases(shapes, tensors, kind)],
        )
        for entry, tensors in zip(ENTRIES, (2, 3), strict=True)
    )


def _cases(shapes: WorkloadShapes, tensors: int, kind: str) -> list[Any]:
    def inputs(distribution: str, ragged: bool) -> list[TensorSpec]:
        shape = (13, 77) if ragged else (shapes.tokens, shapes.intermediate)
        layout = "strided" if distribution == "shifted" else "contiguous"
        spec = TensorSpec(shape=shape, dtype=shapes.dtype, distribution=distribution, layout=layout)
        return [spec] * tensors

    return [
        replace(case, name=f"{kind}-{case.name}", timed=case.timed and kind == "silu")
        for case in standard_cases(inputs, _code(kind))
    ]


LIBRARY_KERNEL = LibraryKernel(
    name="gated_activation",
    summary="SwiGLU and GeGLU: activation and product, forward and backward, in one pass each",
    source_of_idea="arXiv:2002.05202; fused as in Liger-Kernel, arXiv:2410.10989",
    kernels=kernels,
    problems=problems,
)
