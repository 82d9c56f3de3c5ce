"""Models whose weights FSDP2 shards: units that are gathered for their own passes and freed again.

torch.compile takes such a model unit by unit, inside of the hooks that gather its weights, as
torchtitan does (arXiv:2410.06511, section 3.2.1): a graph of several units would break at each.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def sharded_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules within a model that FSDP2 gathers; empty if nothing is sharded."""
    loaded: Any = sys.modules.get("torch.distributed.fsdp")
    if loaded is None:
        return []
    return [one for one in model.modules() if isinstance(one, loaded.FSDPModule)]


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return the sharded units that are compiled one by one: the innermost of several layers."""
    sharded = sharded_in(model)
    return [
        one
        for one in sharded
        if next(one.children(), None) is not None
        and not any(inner is not one for inner in sharded_in(one))
    ]


def is_flattened(model: nn.Module) -> bool:
    """Return True if FSDP1 has flattened weights within the model."""
    loaded: Any = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and any(
        isinstance(one, loaded.FullyShardedDataParallel) for one in model.modules()
    )
