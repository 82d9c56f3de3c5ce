"""The norm of gradients that lie on many ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer


def clip_on_ranks(
    parameters: Iterable[nn.Parameter], most: float, stages: dist.ProcessGroup
) -> None:
    """Scale gradients to a global norm of at most `most`, over all shards and pipeline stages.

    torch's `clip_grad_norm_` takes no parameters of several meshes at once.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    by_mesh: dict[DeviceMesh | None, list[Tensor]] = defaultdict(list)
    for one in gradients:
        by_mesh[one.device_mesh if isinstance(one, DTensor) else None].append(one)
    square = torch.stack([_whole(get_total_norm(own)) ** 2 for own in by_mesh.values()]).sum()
    if dist.get_world_size(stages) > 1:
        dist.all_reduce(square, group=stages)
    scale = (most / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for one in gradients:
        (one.to_local() if isinstance(one, DTensor) else one).mul_(scale)


def clips_before_update(optimizer: Optimizer, most: float, stages: dist.ProcessGroup) -> Optimizer:
    """Return the optimizer; its `step` first clips the gradients of all ranks."""

    def clip(*_: object) -> None:
        held = (p for group in optimizer.param_groups for p in group["params"])
        clip_on_ranks(held, most, stages)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
