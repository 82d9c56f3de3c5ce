"""Linear + cross-entropy without whole logits: `ratchet::linear_cross_entropy`.

    loss = mean over tokens that are not ignored of cross_entropy(x W^T + bias, target)

x [N, H] and weight [V, H] are bf16 or fp32, bias [V] is either or None, target [N] is int64. The
loss is an fp32 scalar; over zero tokens it is NaN, as in torch. If a gradient is needed, the
forward computes dx, dW and dbias by chunks (arXiv:2410.10989), and the backward multiplies them by
the loss's gradient. Two kernels answer the problem: one entirely in C++ (bf16 arithmetic), and
`cross_entropy_rows` between torch's own matrix products (`linear_cross_entropy_chunks`). Activate
the faster one. If both are active, the first runs on all inputs that it takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, registry, reused
from ratchet.kernels.library import linear_cross_entropy_chunks as chunks
from ratchet.kernels.library.linear_cross_entropy_reference import (
    ENTRY,
    IGNORE_INDEX,
    ROWS_ENTRY,
    closed_form,
    loss_of,
    problems,
)
from ratchet.kernels.library.registration import NO_TENSOR, register
from ratchet.kernels.library.sources import make_kernels

CHUNK_TOKENS = 512
"""Tokens per chunk of the C++ kernel: 32 MB of bf16 probabilities at a vocabulary of 32,000."""

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _as_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


def _whole_first(x: Tensor, weight: Tensor) -> bool:
    """Return whether to ask the C++ kernel: not if only the rows' kernel can answer."""
    if not registry.is_active(ROWS_ENTRY):
        return True
    return registry.is_active(ENTRY) and torch.bfloat16 in (x.dtype, weight.dtype)


def _compute(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    gradients: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor | None:
    """Return the active kernel's loss and fill `gradients`; None if no kernel takes the inputs."""
    loss = torch.empty((), dtype=torch.float32)
    x, weight, target = _as_rows(x), _as_rows(weight), target.contiguous()
    whole = (x, weight, NO_TENSOR if bias is None else bias.contiguous(), target, loss)
    scalars = (float(ignore_index), label_smoothing)
    if _whole_first(x, weight):
        tensors = whole if gradients is None else (*whole, *gradients)
        if registry.call(ENTRY, tensors, scalars):
            return loss
    outputs = chunks.Outputs(loss=loss)
    if gradients is not None:
        dbias = gradients[2] if bias is not None else None
        outputs = chunks.Outputs(loss=loss, dx=gradients[0], dweight=gradients[1], dbias=dbias)
    done = chunks.run(x, weight, bias, target, ignore_index, label_smoothing, outputs)
    return loss if done else None


def _check(x: Tensor, weight: Tensor, target: Tensor) -> None:
    if x.dim() != 2 or target.dim() != 1 or target.shape[0] != x.shape[0]:
        raise KernelError(
            f"linear_cross_entropy got x {list(x.shape)} and target {list(target.shape)}: "
            "flatten them to [N, H] and [N]"
        )
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise KernelError(
            f"linear_cross_entropy got weight {list(weight.shape)} for x {list(x.shape)}: "
            "give weight as [V, H]"
        )


def _only_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    _check(x, weight, target)
    loss = None
    if x.is_cpu:
        loss = _compute(x, weight, bias, target, ignore_index, label_smoothing, None)
    if loss is not None:
        return loss
    added = x.new_empty(0) if bias is None else bias
    with torch.autocast(x.device.type, enabled=False):
        return loss_of(x, weight, added, target, (ignore_index, label_smoothing)).float()


def _only_loss_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    return x.new_empty((), dtype=torch.float32)


def _with_gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Four:
    _check(x, weight, target)
    if x.is_cpu:
        dbias = torch.empty(0) if bias is None else torch.empty_like(bias)
        dweight = reused.empty(weight.shape, weight.dtype)
        gradients = torch.empty(x.shape, dtype=x.dtype), dweight, dbias
        loss = _compute(x, weight, bias, target, ignore_index, label_smoothing, gradients)
        if loss is not None:
            return loss, *gradients
    added = x.new_empty(0) if bias is None else bias
    scalars = (ignore_index, label_smoothing)
    loss, dx, dw, db = closed_form(x, weight, added, target, scalars)
    db = db.contiguous() if bias is not None else x.new_empty(0, dtype=torch.float32)
    return loss.float(), dx.contiguous(), dw.contiguous(), db


def _with_gradients_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Four:
    loss = x.new_empty((), dtype=torch.float32)
    dbias = x.new_empty(0, dtype=torch.float32)
    if bias is not None:
        dbias = bias.new_empty(bias.shape)
    return loss, x.new_empty(x.shape), weight.new_empty(weight.shape), dbias


class _Differentiable(torch.autograd.Function):
    """The loss, whose forward computes the gradients and whose backward returns them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
    ) -> Tensor:
        below = torch.ops.ratchet.linear_cross_entropy_gradients
        loss, dx, dweight, dbias = below(x, weight, bias, target, *rest)
        ctx.has_bias, ctx.rest = bias is not None, rest
        ctx.gradients = dx, dweight, dbias
        ctx.save_for_backward(x, weight, bias, target)
        assert isinstance(loss, Tensor)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight, bias, target = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward (retain_graph): the first returned its tensors
            below = torch.ops.ratchet.linear_cross_entropy_gradients
            gradients = below(x, weight, bias, target, *ctx.rest)[1:]
        if not _is_one(grad):
            gradients = tuple((each * grad).to(each.dtype) for each in gradients)
        dx, dweight, dbias = gradients
        wanted = ctx.needs_input_grad
        return (
            dx if wanted[0] else None,
            dweight if wanted[1] else None,
            dbias if ctx.has_bias and wanted[2] else None,
            *(None,) * (1 + len(ctx.rest)),
        )


def _is_one(grad: Tensor) -> bool:
    """Return whether the multiplication can be skipped; a traced graph cannot know."""
    return type(grad) is Tensor and not torch.compiler.is_compiling() and float(grad) == 1.0


def _autograd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    leaves = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
        apply: Any = _Differentiable.apply
        loss = apply(x, weight, bias, target, ignore_index, label_smoothing)
        assert isinstance(loss, Tensor)
        return loss
    with torch._C._AutoDispatchBelowAutograd():
        found = torch.ops.ratchet.linear_cross_entropy(
            x, weight, bias, target, ignore_index, label_smoothing
        )
    assert isinstance(found, Tensor)
    return found


register(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index=-100, "
    "float label_smoothing=0.0) -> Tensor",
    run=_only_loss,
    fake=_only_loss_fake,
)
torch.library.impl("ratchet::linear_cross_entropy", "Autograd", _autograd)
register(
    "linear_cross_entropy_gradients",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index, "
    "float label_smoothing) -> (Tensor, Tensor, Tensor, Tensor)",
    run=_with_gradients,
    fake=_with_gradients_fake,
)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return the C++ kernel, and the rows' kernel for torch's matrix products, for `isa`."""
    whole = make_kernels(ENTRY, "linear_cross_entropy.cpp", (ENTRY,), isa, chunk=str(CHUNK_TOKENS))
    rows = make_kernels(ENTRY, "linear_cross_entropy_rows.cpp", (ROWS_ENTRY,), isa)
    return *whole, *rows


LIBRARY_KERNEL = LibraryKernel(
    name=ENTRY,
    summary="linear + cross-entropy and its gradients by chunks of tokens, without whole logits",
    source_of_idea="Liger-Kernel, arXiv:2410.10989; online softmax, arXiv:1805.02867",
    kernels=kernels,
    problems=problems,
)
