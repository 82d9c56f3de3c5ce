"""Logits that are computed with their loss, by chunks of tokens, in eager steps.

The model's last linear layer returns its inputs and weights, dressed as the logits [..., V]. Views
that keep the classes whole stay so dressed; `cross_entropy` then calls the op
`ratchet::linear_cross_entropy`; anything else computes the logits as written. A compiled step has
the same from `ratchet.train.graph.patterns.linear`.

If the layer shares its weight with the embedding, both gradients go straight into `.grad`: autograd
would hold two of them, and their sum as a third.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.checkpointing import (
    is_transformed,
    replace_forward,
    restore_forwards,
)

DEFERS: Final = "defers_logits"  # Mark of a layer whose forward is replaced here


def find_head(model: nn.Module) -> nn.Linear | None:
    """Return the linear layer that makes the logits: the model's widest, if it widens."""
    named = getattr(model, "get_output_embeddings", None)
    found = named() if callable(named) else None
    if isinstance(found, nn.Linear):
        return found
    layers = [one for one in model.modules() if type(one) is nn.Linear]
    widest = max(layers, key=lambda one: one.out_features, default=None)
    return widest if widest is not None and widest.out_features > widest.in_features else None


def apply_logits(model: nn.Module, logits: str) -> None:
    """Make the model's head defer its logits if they are `chunked`, in place; `whole` undoes it.

    Raises WorkloadError if the model has no head.
    """
    restore_forwards(model, DEFERS)
    if logits == "whole":
        return
    head = find_head(model)
    if head is None:
        raise WorkloadError(
            f"chunked logits need a last linear layer that widens, but {type(model).__name__} has "
            "none; use logits whole"
        )
    tables = [one for one in model.modules() if type(one) is nn.Embedding]
    tied = [one for one in tables if one.weight is head.weight]
    replace_forward(head, DEFERS, _deferring(head, bool(tied)))
    for table in tied:
        replace_forward(table, DEFERS, _rows(table))


def _rows(table: nn.Embedding) -> Callable[[Tensor], Tensor]:
    """Return a forward whose gradient is the rows that were read, not a whole table."""
    written = table.forward

    def forward(tokens: Tensor) -> Tensor:
        if _runs_as_written() or not _alone():
            return written(tokens)
        how = table.max_norm, table.norm_type, table.scale_grad_by_freq, True
        return F.embedding(tokens, table.weight, table.padding_idx, *how)

    return forward


def _runs_as_written() -> bool:
    compiling = torch.compiler.is_compiling()
    return compiling or is_transformed() or not torch.is_grad_enabled()


def _alone() -> bool:
    """Return True unless other ranks may wait for a gradient that autograd hands over."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _deferring(head: nn.Linear, tied: bool) -> Callable[[Tensor], Tensor]:
    written = head.forward

    def forward(x: Tensor) -> Tensor:
        if _runs_as_written():
            return written(x)
        return DeferredLogits(x, head.weight, head.bias, tied and _alone())

    return forward


class DeferredLogits(Tensor):
    """Logits [..., V] of x [..., H], weight [V, H] and bias [V] or None, not computed yet."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    tied: bool

    @staticmethod
    def __new__(cls, x: Tensor, weight: Tensor, bias: Tensor | None, tied: bool) -> DeferredLogits:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        made: DeferredLogits = Tensor._make_wrapper_subclass(
            cls, (*x.shape[:-1], weight.shape[0]), dtype=dtype, device=x.device
        )
        made.x, made.weight, made.bias, made.tied = x.to(dtype), weight, bias, tied
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        found: Tensor | None = None
        if args and isinstance(args[0], cls):
            if func is F.cross_entropy:
                found = args[0]._cross_entropy(*args[1:], **named)
            elif func in _VIEWS:
                found = args[0]._viewed(func, args[1:], named)
        return cls.__torch_dispatch__(func, types, args, named) if found is None else found

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        def computed(one: DeferredLogits) -> Tensor:
            return F.linear(one.x, one.weight, one.bias)

        whole = pytree.tree_map_only(cls, computed, (args, kwargs or {}))
        return func(*whole[0], **whole[1])

    def _viewed(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> DeferredLogits | None:
        """Return the view if its rows are whole; None if it must be computed."""
        if func in _SAME:
            return self
        if func is Tensor.__getitem__:
            parts = args[0] if isinstance(args[0], tuple) else (args[0],)
            slices = all(part is Ellipsis or isinstance(part, slice) for part in parts)
            last = parts[-1] is Ellipsis or parts[-1] == slice(None)
            if not slices or not (last or (len(parts) < self.dim() and Ellipsis not in parts)):
                return None
            return self._of(self.x[args[0]])
        shape = func(torch.empty(self.shape, device="meta"), *args, **named).shape
        if not shape or shape[-1] != self.shape[-1]:
            return None
        return self._of(self.x.reshape(*shape[:-1], self.x.shape[-1]))

    def _of(self, x: Tensor) -> DeferredLogits:
        return DeferredLogits(x, self.weight, self.bias, self.tied)

    def _cross_entropy(
        self,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor | None:
        """Return the loss; None for the kinds of it that the op does not compute."""
        plain = weight is None and size_average is None and reduce is None
        if not plain or reduction != "mean" or self.dim() != 2 or target.dtype != torch.int64:
            return None
        # Defines the op, and loads much that a step with whole logits does not need.
        from ratchet.judge.kernels.library import linear_cross_entropy as _  # noqa: F401

        scalars = ignore_index, label_smoothing
        if self.tied:
            apply: Any = _IntoGradients.apply
            return apply(self.x, self.weight, self.bias, target, *scalars)  # type: ignore[no-any-return]
        op = torch.ops.ratchet.linear_cross_entropy
        return op(self.x, self.weight, self.bias, target, *scalars)  # type: ignore[no-any-return]


class _IntoGradients(torch.autograd.Function):
    """The loss, whose backward adds the weight's gradient to `.grad` itself."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: Any
    ) -> Tensor:
        below = torch.ops.ratchet.linear_cross_entropy_gradients
        loss, *ctx.gradients = below(x, weight, bias, target, *rest)
        ctx.weight, ctx.has_bias = weight, bias is not None
        return loss  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise WorkloadError(
                "chunked logits take one backward pass, but this step runs backward twice over "
                "the same loss; use logits whole"
            )
        (dx, dweight, dbias), ctx.gradients = ctx.gradients, None
        if not (grads[0].is_cpu and float(grads[0]) == 1.0):
            for one in (dx, dweight, dbias):
                one.mul_(grads[0])
        if ctx.weight.grad is None:
            ctx.weight.grad = dweight
        else:
            ctx.weight.grad.add_(dweight)
        return dx, None, dbias if ctx.has_bias else None, None, None, None


_SAME: Final = frozenset({Tensor.contiguous, Tensor.float})
_VIEWS: Final = _SAME | {
    Tensor.__getitem__, Tensor.view, Tensor.reshape, Tensor.flatten, torch.flatten, torch.reshape,
}  # fmt: skip
_FACTS: Final = frozenset(
    [getattr(Tensor, name) for name in ("size", "dim", "numel", "__len__", "is_floating_point")]
    + [getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda")]
)
