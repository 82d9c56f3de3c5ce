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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import define, features_last, on_meta, or_none
from ratchet.judge.kernels.library import FUSED, LibraryKernel
from ratchet.judge.kernels.library import linear_cross_entropy_chunks as chunks
from ratchet.judge.kernels.library.sources import Variant
from ratchet.judge.problems.suites.shipped.linear_cross_entropy import (
    ENTRY,
    IGNORE_INDEX,
    ROWS_ENTRY,
    loss_of,
)

CHUNK_TOKENS = 512
"""Tokens per chunk of the C++ kernel: 32 MB of bf16 probabilities at a vocabulary of 32,000."""

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _whole_first(x: Tensor, weight: Tensor) -> bool:
    """Return whether to ask the C++ kernel: not if only the rows' kernel can answer."""
    if not registry.is_active(ROWS_ENTRY):
        return True
    return registry.is_active(ENTRY) and torch.bfloat16 in (x.dtype, weight.dtype)


def _computed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scalars: tuple[float, float],
    outputs: Sequence[Tensor],
) -> Sequence[Tensor] | None:
    """Return the active kernel's loss and gradients; None if no kernel takes the inputs.

    `outputs` are what it may write: the loss alone, or also dx, dweight and dbias.
    """
    _check(x, weight, target)
    x, weight, target = features_last(x), features_last(weight), target.contiguous()
    if not x.is_cpu or _whole_first(x, weight):
        found = registry.call(ENTRY, (x, weight, or_none(bias), target), scalars, outputs)
        if found is not None:
            return found
    done = x.is_cpu and chunks.run(x, weight, bias, target, scalars, outputs)
    return outputs if done else None


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


def _loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the loss alone, as the C++ kernels can."""
    scalars = (float(ignore_index), label_smoothing)
    if x.is_cpu:
        loss = torch.empty((), dtype=torch.float32)
        if _computed(x, weight, bias, target, scalars, (loss,)) is not None:
            return loss
    _check(x, weight, target)
    added = x.new_empty(0) if bias is None else bias
    with torch.autocast(x.device.type, enabled=False):
        return loss_of(x, weight, added, target, scalars).float()


def _gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Four:
    given = (x, weight, bias, target)
    scalars = (float(ignore_index), label_smoothing)
    forms = _gradients_fake(*map(on_meta, given))
    if x.is_cpu and chunks.may_run():
        loss, dx, dbias = (torch.empty_like(forms[i], device="cpu") for i in (0, 1, 3))
        forms = loss, dx, chunks.reused_empty(weight.shape, weight.dtype), dbias
    found = _computed(*given, scalars, forms)
    if found is None:
        found = registry.filled(forms, chunks.in_torch(x, weight, bias, target, scalars))
    loss, dx, dweight, dbias = found
    return loss, dx, dweight, dbias


def _gradients_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *scalars: float
) -> Four:
    loss, none = (x.new_empty(size, dtype=torch.float32) for size in ((), (0,)))
    dbias = none if bias is None else bias.new_empty(bias.shape)
    return loss, x.new_empty(x.shape), weight.new_empty(weight.shape), dbias


class _Differentiable(torch.autograd.Function):
    """The loss, whose forward computes the gradients and whose backward returns them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: object
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


define(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index=-100, "
    "float label_smoothing=0.0) -> Tensor",
    run=_loss,
    fake=lambda *given: given[0].new_empty((), dtype=torch.float32),
)
torch.library.impl("ratchet::linear_cross_entropy", "Autograd", _autograd)
define(
    "linear_cross_entropy_gradients",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index, "
    "float label_smoothing) -> (Tensor, Tensor, Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
)

LINEAR_CROSS_ENTROPY = LibraryKernel(
    name=ENTRY,
    summary="linear + cross-entropy and its gradients by chunks of tokens, without whole logits",
    source_of_idea="Liger-Kernel, arXiv:2410.10989; online softmax, arXiv:1805.02867",
    variants=(
        Variant(
            language="cpp",
            file="linear_cross_entropy",
            entries=(ENTRY,),
            schedule=(("chunk", str(CHUNK_TOKENS)),),
        ),
        Variant(language="cpp", file="linear_cross_entropy_rows", entries=(ROWS_ENTRY,)),
        Variant(language="triton", file="linear_cross_entropy", entries=(ENTRY,)),
        Variant(language="triton", file="cross_entropy_rows", entries=(ROWS_ENTRY,)),
    ),
    acts_on=("loss", "matmul", *FUSED),
    alternatives=(ENTRY, ROWS_ENTRY),
    on_cores=(ROWS_ENTRY,),
)
