"""The global 2-norm of all gradients, also if they are sharded over processes (FSDP2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels import registry
from ratchet.problems.suites.shipped.adamw import gradient_square_sum


def local_of(tensor: Tensor) -> Tensor:
    """Return a DTensor's local shard without a copy; any other tensor unchanged."""
    if _is_dtensor(tensor):
        shard: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
        return shard
    return tensor


def global_norm(gradients: Sequence[Tensor]) -> float:
    """Return the 2-norm of all `gradients`; sharded ones are summed over their mesh.

    Every process of a mesh must call it with the same parameters.
    """
    total = 0.0
    for sharding, members in _by_sharding(gradients).items():
        part = _square_sum([local_of(member) for member in members])
        for mesh, dimension in sharding:
            torch.distributed.all_reduce(part, group=mesh.get_group(dimension))
        total += float(part)
    return math.sqrt(total)


def _square_sum(gradients: Sequence[Tensor]) -> Tensor:
    out = torch.empty(1, dtype=torch.float32, device=gradients[0].device)
    found = registry.call("gradient_square_sum", gradients, (), (out,))
    return found[0] if found is not None else gradient_square_sum(*gradients, ())[0].float()


def _by_sharding(gradients: Sequence[Tensor]) -> dict[tuple[Any, ...], list[Tensor]]:
    """Group gradients by the mesh dimensions that they are sharded over; () for whole ones."""
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for gradient in gradients:
        found.setdefault(_sharding(gradient), []).append(gradient)
    return found


def _sharding(gradient: Tensor) -> tuple[Any, ...]:
    if not _is_dtensor(gradient):
        return ()
    mesh, placements = gradient.device_mesh, gradient.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise KernelError(
            f"a gradient is placed {placements}, not yet summed: redistribute it before the step"
        )
    return tuple((mesh, axis) for axis, placed in enumerate(placements) if placed.is_shard())


def _is_dtensor(tensor: Tensor) -> bool:
    # No import, since that is slow: a caller with a DTensor has imported its module.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
