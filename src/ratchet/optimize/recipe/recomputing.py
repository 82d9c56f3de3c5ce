"""Find the blocks that cannot be recomputed, as each call of them leaves something behind.

Recomputing calls a block twice a step. A block that averages its inputs into a buffer (BatchNorm),
counts its calls or shows them to a hook would then do so twice.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ratchet.workloads.checkpointing import find_blocks

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class Blocks:
    """A model's blocks, and what they kept before a call of the step."""

    def __init__(self, model: nn.Module, checkpointing: str) -> None:
        self._blocks = [] if checkpointing == "none" else find_blocks(model)
        self._before = [_kept(block) for block in self._blocks]

    def that_changed(self) -> list[nn.Module]:
        """Return the blocks that keep something else now, or have hooks within."""
        return [
            block
            for block, before in zip(self._blocks, self._before, strict=True)
            if _kept(block) != before or _has_hooks(block)
        ]


def _kept(block: nn.Module) -> list[Any]:
    """Return what tells one state of a block from another, without its parameters."""
    found: list[Any] = []
    for module in block.modules():
        found += [(id(one), one._version) for one in module._buffers.values() if one is not None]
        for name, value in module.__dict__.items():
            if type(value) in (int, float):
                found.append((name, value))
            elif isinstance(value, list):
                found.append((name, len(value)))
    return found


def _has_hooks(block: nn.Module) -> bool:
    """Return True if a module within the block has forward hooks; its own run outside of it."""
    inner = [module for module in block.modules() if module is not block]
    return any(getattr(module, name) for module in inner for name in HOOKS)
