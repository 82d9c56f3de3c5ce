"""Tensors that a model keeps outside of its parameters and buffers.

They are found in its attributes and those of its submodules: plain tensors, and those in lists,
tuples, dicts, objects, partial functions and closures.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Final

from torch import Tensor, nn

DEEPEST: Final = 4
"""Containers inside one another."""
MOST: Final = 4096
"""Values to look at."""


def kept_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors by where they are kept, each once; none of the model's own state."""
    state = {id(one) for one in (*model.parameters(), *model.buffers())}
    found: dict[str, Tensor] = {}
    met = {id(one) for one in model.modules()}
    for prefix, owner in model.named_modules():
        own = {id(owner._parameters), id(owner._buffers), id(owner._modules)}
        for name, value in list(vars(owner).items()):
            if id(value) in own or name.endswith("_hooks"):
                continue
            path = f"{prefix}.{name}" if prefix else name
            for where, tensor in _inside(value, path, DEEPEST, met):
                if id(tensor) not in state and len(found) < MOST:
                    found[where] = tensor
    return found


def _inside(value: object, path: str, depth: int, met: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, (str, bytes, int, float, type, types.ModuleType, nn.Module)):
        return
    if id(value) in met or len(met) > MOST:
        return
    met.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
        return
    if depth:
        for name, member in _members(value):
            yield from _inside(member, f"{path}.{name}", depth - 1, met)


def _members(value: object) -> list[tuple[str, object]]:
    """Return what a container, a function or an object of plain attributes holds, with names."""
    if isinstance(value, (list, tuple)):
        return [(str(at), one) for at, one in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key)[:40], one) for key, one in list(value.items())]
    if isinstance(value, functools.partial):
        return [("func", value.func), *_members(value.args), *_members(value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(name, _held(cell)) for name, cell in cells]
    module = type(value).__module__.partition(".")[0]
    if module in ("torch", "builtins", "numpy", "collections"):
        return []
    return list(getattr(value, "__dict__", {}).items())


def _held(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
