"""Give a script fp32 tensors where it finds them as written, though its modules run in autocast.

What a module returns, or keeps for its next call, may be read outside of the recipe: by numpy, by
an evaluation between two steps, by a checkpoint.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ratchet.train.recipe.slots import ABSENT, Attribute

NOT_KEPT = frozenset({"_parameters", "_modules"})
"""Attributes of a module that hold no tensors of its own making."""


def widened(value: object) -> Any:
    """Return `value` with fp32 tensors in place of bf16 ones, also in the fields of dataclasses."""
    return tree_map(_widened, value)


def _widened(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.float() if leaf.dtype == torch.bfloat16 else leaf
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return leaf
    narrow = [
        field.name
        for field in dataclasses.fields(leaf)
        if _holds(getattr(leaf, field.name, None), torch.bfloat16)
    ]
    if not narrow:
        return leaf
    found = copy.copy(leaf)
    for name in narrow:
        object.__setattr__(found, name, widened(getattr(leaf, name)))
    return found


class WidenedForward(Attribute):
    """A module's forward whose results are fp32, around the one that is in place already."""

    def __init__(self, module: nn.Module) -> None:
        plain = module.forward

        def forward(*given: object, **named: object) -> object:
            written = plain if self.before is ABSENT else self.before
            return widened(written(*given, **named))

        super().__init__(module, "forward", forward)


class KeptTensors:
    """The fp32 tensors that modules keep in attributes and buffers, such as hidden states."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        """Look at what the modules keep after a call as written."""
        inner = {id(one): one for module in modules for one in module.modules()}
        self._places = [
            (held, name)
            for one in inner.values()
            for held in (one.__dict__, one._buffers)
            for name, value in held.items()
            if name not in NOT_KEPT and name != "_buffers" and _holds(value, torch.float32)
        ]

    def widen(self) -> None:
        """Make what a call in autocast has left there fp32 again."""
        for held, name in self._places:
            if _holds(held.get(name), torch.bfloat16):
                held[name] = widened(held[name])


def computes_in_bf16(module: nn.Module) -> bool:
    """Return True for a module with bf16 parameters, whose results are bf16 as written."""
    return any(parameter.dtype == torch.bfloat16 for parameter in module.parameters())


def _holds(value: object, dtype: torch.dtype) -> bool:
    return any(
        isinstance(leaf, Tensor) and leaf.dtype == dtype and not isinstance(leaf, nn.Parameter)
        for leaf in tree_leaves(value)
    )
