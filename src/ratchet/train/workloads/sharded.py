"""Models that lie on several ranks: which parts FSDP2 gathers, and how those are compiled.

torch.compile takes a sharded model unit by unit, inside of the hooks that gather its weights, as
torchtitan does (arXiv:2410.06511, section 3.2.1): a graph of several units would break at each.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ratchet.train.workloads.checkpointing import is_transformed
from ratchet.train.workloads.recompilation import BoundedCompile, CompileOptions

_COUNT = itertools.count()


def without_ddp(module: nn.Module) -> nn.Module:
    """Return the module in a DistributedDataParallel, whose own code dynamo does not enter."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def sharded_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules within a model that FSDP2 gathers; empty if nothing is sharded."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    if loaded is None:
        return []
    return [one for one in model.modules() if isinstance(one, loaded.FSDPModule)]


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return the sharded units that are compiled one by one: the innermost of several layers."""
    return [
        one
        for one in sharded_in(model)
        if next(one.children(), None) is not None
        and not any(inner is not one for inner in sharded_in(one))
    ]


def is_flattened(model: nn.Module) -> bool:
    """Return True if FSDP1 has flattened weights within the model."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and any(
        isinstance(one, loaded.FullyShardedDataParallel) for one in model.modules()
    )


def is_on_ranks(model: nn.Module) -> bool:
    """Return True if the gradients of other ranks reach the model's parameters."""
    return isinstance(model, DistributedDataParallel) or bool(sharded_in(model))


class CompiledUnit:
    """A sharded unit's forward, compiled where gradients are recorded; `written` is the plain one.

    It stands in the place of the unit's `forward`, so FSDP2's hooks run around it.
    """

    def __init__(
        self, unit: nn.Module, options: CompileOptions, written: Callable[..., object]
    ) -> None:
        def call(*arguments: object, **named: object) -> object:
            return written(*arguments, **named)

        self.written = written
        self.compiled = BoundedCompile(with_own_code(call, unit), options)

    def __call__(self, *arguments: object, **named: object) -> object:
        inside = torch.compiler.is_compiling() or is_transformed()
        if inside or not torch.is_grad_enabled():
            return self.written(*arguments, **named)
        return self.compiled(*arguments, **named)


def compile_units(model: nn.Module, options: CompileOptions) -> bool:
    """Compile the units of a sharded model in place; return False if it has none."""
    units = units_of(model)
    for one in units:
        one.__dict__["forward"] = CompiledUnit(one, options, one.forward)
    return bool(units)


def with_own_code(call: Callable[..., object], module: nn.Module) -> Callable[..., object]:
    """Give a function that stands for a module code of its own, and return it.

    Dynamo bounds recompilations for each code object, and all modules share one of torch's.
    """
    name = f"call_{next(_COUNT)}_{type(module).__name__}"
    call.__code__ = call.__code__.replace(co_name=name)
    return call
