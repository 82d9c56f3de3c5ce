"""Settings of communication in a model that DDP or FSDP2 has wrapped already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.parallel.hooks import reduce_in_bf16
from ratchet.train.workloads.parallel.tuning import ParallelTuning

POWER_RANK: Final = 2
"""Rank of PowerSGD's factors (arXiv:1905.13727, whose experiments use 1 to 4)."""


def tune(model: nn.Module, tuning: ParallelTuning) -> list[str]:
    """Set what can be set in a script's own wrapped model, and return what its script must set."""
    if isinstance(model, DistributedDataParallel):
        reduce_by(model, tuning)
        mebibytes = tuning.bucket_cap_mb
        left = [f"DistributedDataParallel(bucket_cap_mb={mebibytes})"] if mebibytes else []
    elif isinstance(model, FSDPModule):
        sharded = [one for one in find_blocks(model) if isinstance(one, FSDPModule)]
        for one in sharded if not tuning.reshard_after_forward else ():
            one.set_reshard_after_forward(False)
        prefetch(sharded, tuning.prefetch)
        rounded = tuning.reduction == "bf16"
        left = ["fully_shard(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"]
        left = left if rounded else []
    else:
        return ["DistributedDataParallel or fully_shard around the model"]
    if tuning.async_tp:
        left.append("torch._inductor.config._micro_pipeline_tp and symmetric memory")
    return [*left, "no_sync around all but the last micro-batch"] if tuning.no_sync else left


def reduce_by(model: DistributedDataParallel, tuning: ParallelTuning) -> None:
    """Give DDP the communication hook that rounds or compresses its gradients, if any."""
    if tuning.reduction == "bf16":
        model.register_comm_hook(None, reduce_in_bf16)
    if tuning.reduction == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def prefetch(blocks: Sequence[FSDPModule], ahead: int) -> None:
    """Make each block gather the weights of `ahead` blocks after it, and before it in backward."""
    for place, one in enumerate(blocks if ahead else ()):
        after, before = place + 1, max(0, place - ahead)
        one.set_modules_to_forward_prefetch(list(blocks[after : after + ahead]))
        one.set_modules_to_backward_prefetch(list(blocks[before:place][::-1]))


def overlap_products(mesh: DeviceMesh) -> None:
    """Let graphs that are compiled from now on overlap products with collectives of the mesh.

    Inductor cuts the products into parts and sends each by symmetric memory between GPUs (async
    tensor parallelism, arXiv:2105.05720).
    """
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    enable_symm_mem_for_group(mesh.get_group().group_name)
    torch._inductor.config._micro_pipeline_tp = True


def exchange(model: nn.Module, last: bool) -> None:
    """Exchange the gradients of the next backward pass, or keep them to be added up."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
