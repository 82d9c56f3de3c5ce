"""Activation checkpointing: blocks that recompute their forward pass during backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ratchet.base.errors import WorkloadError

aten = torch.ops.aten
KEPT_OPS = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
]
"""Ops whose outputs `selective` keeps, as they are expensive to recompute."""


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks: its longest nn.ModuleList or nn.Sequential."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len)) if lists else []


def apply_checkpointing(model: nn.Module, checkpointing: str) -> None:
    """Make the model's blocks recompute as `checkpointing` says, in place; `none` undoes it.

    Raises WorkloadError if the model has no list of blocks.
    """
    blocks = find_blocks(model)
    for block in blocks:
        _restore(block)
    if checkpointing == "none":
        return
    if not blocks:
        raise WorkloadError(
            f"checkpointing {checkpointing!r} needs blocks in an nn.ModuleList or "
            f"nn.Sequential, but {type(model).__name__} has none; use checkpointing none"
        )
    if checkpointing == "selective":
        for block in blocks:
            _wrap(block, context_fn=partial(create_selective_checkpoint_contexts, KEPT_OPS))
        return
    for block in blocks[:: int(checkpointing.removeprefix("blocks:"))]:
        _wrap(block)


def _wrap(block: nn.Module, **options: Any) -> None:
    forward: Callable[..., Any] = block.forward

    def recomputing(*args: Any, **kwargs: Any) -> Any:
        if is_transformed():
            return forward(*args, **kwargs)
        # A graph holds the tensors that it was traced with.
        again = forward if torch.compiler.is_compiling() else _with_tensors_of(block, forward)
        return checkpoint(again, *args, use_reentrant=False, **options, **kwargs)

    block.__dict__["forward"] = recomputing
    block.__dict__["recomputes"] = True


def _with_tensors_of(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that runs with the parameters and buffers that the block has now.

    During backward it may have others: `torch.func.functional_call` puts its own in place and takes
    them out again when the forward pass ends.
    """
    now = _tensors(block)

    def again(*args: Any, **kwargs: Any) -> Any:
        then = _tensors(block)
        _put(now)
        try:
            return forward(*args, **kwargs)
        finally:
            _put(then)

    return again


Held = list[tuple[dict[str, Any], dict[str, Any]]]


def _tensors(block: nn.Module) -> Held:
    return [
        (held, dict(held))
        for module in block.modules()
        for held in (module._parameters, module._buffers)
        if held
    ]


def _put(tensors: Held) -> None:
    for held, values in tensors:
        held.update(values)


def is_transformed() -> bool:
    """Return True within torch.func's transforms (vmap, grad), which take no compiled module."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _restore(block: nn.Module) -> None:
    if block.__dict__.pop("recomputes", False):
        del block.__dict__["forward"]
