"""Activation checkpointing: blocks that recompute their forward pass during backward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
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
RECOMPUTES: Final = "recomputes"  # Mark of a block whose forward is replaced here
CHOICES: Final = {"n": "none", "s": "selective", "f": "full", "o": "offload"}
"""A block's treatment of the tensors that its backward pass needs, by its letter in a plan."""


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks: its longest nn.ModuleList or nn.Sequential."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len)) if lists else []


def replace_forward(module: nn.Module, mark: str, forward: Callable[..., object]) -> None:
    """Put a forward in the place of a module's own, until `restore_forwards` takes it out."""
    module.__dict__["forward"] = forward
    module.__dict__[mark] = True


def replaced_in(model: nn.Module, mark: str) -> list[nn.Module]:
    """Return the model's modules whose forward is replaced under this mark."""
    return [one for one in model.modules() if mark in one.__dict__]


def restore_forwards(model: nn.Module, mark: str) -> None:
    for module in replaced_in(model, mark):
        del module.__dict__["forward"], module.__dict__[mark]


def apply_checkpointing(model: nn.Module, checkpointing: str) -> None:
    """Make the model's blocks recompute as `checkpointing` says, in place; `none` undoes it.

    Raises WorkloadError if the model has no list of blocks.
    """
    restore_forwards(model, RECOMPUTES)
    if checkpointing == "none":
        return
    blocks = find_blocks(model)
    if not blocks:
        raise WorkloadError(
            f"checkpointing {checkpointing!r} needs blocks in an nn.ModuleList or "
            f"nn.Sequential, but {type(model).__name__} has none; use checkpointing none"
        )
    for block, choice in zip(blocks, choices_of(checkpointing, len(blocks)), strict=True):
        _APPLY[choice](block)


def choices_of(checkpointing: str, blocks: int) -> str:
    """Return the letter of each block's choice (see CHOICES).

    Raises WorkloadError if a plan is for another number of blocks.
    """
    kind, _, rest = checkpointing.partition(":")
    if kind == "blocks":
        return "".join("n" if index % int(rest) else "f" for index in range(blocks))
    if kind != "plan":
        return kind[0] * blocks
    if len(rest) != blocks:
        raise WorkloadError(
            f"checkpointing {checkpointing!r} is for {len(rest)} blocks, but the model has "
            f"{blocks}; run `ratchet memory` on this model"
        )
    return rest


def _wrap(block: nn.Module, **options: Any) -> None:
    forward: Callable[..., object] = block.forward
    cache = getattr(sys.modules.get("transformers.cache_utils"), "Cache", ())

    def recomputing(*args: object, **kwargs: Any) -> object:
        caches: list[Any] = [one for one in (*args, *kwargs.values()) if isinstance(one, cache)]
        if caches:
            # Recomputing would fill a cache twice: transformers leaves an empty one out as well.
            if any(one.get_seq_length() for one in caches):
                return forward(*args, **kwargs)
            args = tuple(None if isinstance(one, cache) else one for one in args)
            kwargs = {k: None if isinstance(v, cache) else v for k, v in kwargs.items()}
        # dynamo answers is_transformed() with True, so it is not asked there.
        if torch.compiler.is_compiling():
            again = forward  # a graph holds the tensors that it was traced with
        elif is_transformed():
            return forward(*args, **kwargs)
        else:
            again = _with_tensors_of(block, forward)
        return checkpoint(again, *args, use_reentrant=False, **options, **kwargs)

    replace_forward(block, RECOMPUTES, recomputing)


def _offload(block: nn.Module) -> None:
    forward: Callable[..., object] = block.forward

    def offloading(*args: object, **kwargs: object) -> object:
        with OffloadedTensors(block):
            return forward(*args, **kwargs)

    replace_forward(block, RECOMPUTES, offloading)


class OffloadedTensors(saved_tensors_hooks):
    """Like torch.autograd.graph.save_on_cpu, but the block's own weights stay where they are."""

    def __init__(self, block: nn.Module) -> None:
        own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}

        def pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
            if tensor.untyped_storage().data_ptr() in own:
                return tensor.device, tensor
            copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            return tensor.device, copy.copy_(tensor)

        def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor.to(device, non_blocking=tensor.is_pinned())

        super().__init__(pack, unpack)


_APPLY: Final[dict[str, Callable[[nn.Module], None]]] = {
    "n": lambda block: None,
    "s": lambda block: _wrap(
        block, context_fn=partial(create_selective_checkpoint_contexts, KEPT_OPS)
    ),
    "f": lambda block: _wrap(block),
    "o": _offload,
}


def _with_tensors_of(block: nn.Module, forward: Callable[..., object]) -> Callable[..., object]:
    """Return a forward that runs with the parameters and buffers that the block has now.

    During backward it may have others: `torch.func.functional_call` puts its own in place and takes
    them out again when the forward pass ends.
    """
    now = _tensors(block)

    def again(*args: object, **kwargs: object) -> object:
        then = _tensors(block)
        for held, values in now:
            held.update(values)
        try:
            return forward(*args, **kwargs)
        finally:
            for held, values in then:
                held.update(values)

    return again


def _tensors(block: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    held = (one for module in block.modules() for one in (module._parameters, module._buffers))
    return [(one, dict(one)) for one in held if one]


def is_transformed() -> bool:
    """Return True within torch.func's transforms (vmap, grad), which take no compiled module."""
    return torch._C._functorch.peek_interpreter_stack() is not None
