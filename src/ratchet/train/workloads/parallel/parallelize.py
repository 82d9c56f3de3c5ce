"""A workload's step on this rank: `parallelize(workload, layout)`, saved and resumed."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ratchet.base.errors import RanksError, WorkloadError
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.llama import Attention
from ratchet.train.workloads.parallel import (
    ParallelLayout,
    ParallelTuning,
    SplitSizes,
    check_layout,
)
from ratchet.train.workloads.parallel.meshes import (
    Meshes,
    exchange,
    make_meshes,
    overlap_products,
    prefetch,
    reduce_by,
)
from ratchet.train.workloads.parallel.split import (
    cut,
    experts_of,
    pipelined_step,
    split_experts,
    split_products,
    split_sequence,
)
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Batch, BatchFunction, Workload


def parallelize(
    workload: Workload, layout: ParallelLayout, tuning: ParallelTuning | None = None
) -> Workload:
    """Return the workload as this rank runs it; its model is split in place.

    Its batches are this rank's share of the workload's, so that all ranks together train on the
    same data as one would. All ranks call this with the same arguments, after `joined`. The mean of
    the ranks' losses is the workload's (`mean_loss`). Raises WorkloadError for a layout that the
    workload or the number of ranks does not allow.
    """
    tuning = tuning or ParallelTuning()
    sizes = check_parallel(workload, layout)
    device = torch.device(workload.device)
    meshes = make_meshes(layout, device.type)
    model = workload.model
    if layout.cp > 1:
        split_sequence(model, meshes.tokens["cp"], sizes.sequence)
    if layout.tp > 1:
        split_products(model, meshes.dense["tp"])
        if tuning.async_tp:
            overlap_products(meshes.dense["tp"])
    if meshes.experts is not None:
        split_experts(model, meshes.experts["ep", "tp"] if layout.tp > 1 else meshes.experts["ep"])
    elif layout.tp > 1:
        split_experts(model, meshes.dense["tp"])
    made = replace(workload, batch=_share(workload, meshes), tokens_per_batch=None)
    if not layout.is_data_parallel:  # torch clips no gradients of several meshes at once
        pipeline = meshes.dense.get_group("pp")
        clipped = partial(_clipped, workload.optimizer, workload.clip_norm, pipeline)
        made = replace(made, optimizer=clipped, clip_norm=None)
    if layout.pp > 1:
        assert workload.loss is not None
        stages = cut(workload, layout, meshes.dense.get_local_rank("pp"))
        if layout.data * layout.cp > 1:
            _shard(list(stages.values()), meshes, tuning)
        group = meshes.dense.get_group("pp")
        step = pipelined_step(stages, layout, workload.loss, device, group)
        return replace(made, loss=None, train_step=step)
    if layout.is_ddp:
        model = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=tuning.bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        reduce_by(model, tuning)
    elif layout.data * layout.cp > 1:
        _shard([model], meshes, tuning)
    sync = partial(exchange, model) if tuning.no_sync else workload.sync
    return replace(made, model=model, sync=sync, accumulate=workload.accumulate * layout.micro)


def mean_loss(loss: Tensor) -> float:
    """Return the mean of the ranks' losses, which is the loss of the whole batch."""
    total = loss.detach().float().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def dimensions(workload: Workload) -> SplitSizes:
    """Return what a layout must divide, from the model and its first batch."""
    held = [one for one in pytree.tree_leaves(workload.batch(0)) if isinstance(one, Tensor)]
    if not held or not all(one.ndim for one in held):
        raise WorkloadError(
            f"{workload.name}: its batches are not tensors of samples, so ranks cannot share them: "
            "put the samples along the first dimension"
        )
    first = held[0]
    attention = next((m for m in workload.model.modules() if isinstance(m, Attention)), None)
    heads = getattr(
        next((m for m in workload.model.modules() if hasattr(m, "heads")), None), "heads", 0
    )
    groups = experts_of(workload.model)
    return SplitSizes(
        batch_size=len(first),
        sequence=first.shape[1] if first.ndim > 1 else 0,
        layers=len(find_blocks(workload.model)),
        heads=attention.q_proj.out_features // attention.head_dim if attention else heads,
        kv_heads=attention.k_proj.out_features // attention.head_dim if attention else heads,
        experts=len(groups[0].gate) if groups else 0,
    )


def check_parallel(workload: Workload, layout: ParallelLayout) -> SplitSizes:
    """Return what a layout divides; WorkloadError if it does not, or the workload allows none."""
    sizes = dimensions(workload)
    if workload.train_step is not None:
        raise WorkloadError(
            f"{workload.name} has a train_step of its own: give it a loss, or parallelise it there"
        )
    if layout.ep > 1 and not sizes.experts:
        raise WorkloadError(
            f"{workload.name} has 0 experts for ep={layout.ep}: use moe, or drop ep"
        )
    if layout.world > 1 and workload.optimizers is not None:
        raise WorkloadError(f"{workload.name} has several optimizers: give it one `optimizer`")
    if layout.pp > 1 and workload.accumulate > 1:
        raise WorkloadError(
            f"{workload.name} accumulates {workload.accumulate} batches: with pp, use micro instead"
        )
    if workload.precision == "bf16_master":
        raise WorkloadError("precision 'bf16_master' runs on one rank; use bf16_autocast")
    check_layout(layout, sizes, workload.name)
    return sizes


def _share(workload: Workload, meshes: Meshes) -> BatchFunction:
    """Return the batches of this rank: its rows, in `micro` parts, and its part of the sequence."""
    layout, given = meshes.layout, workload.batch
    parts = 1 if layout.pp > 1 else layout.micro
    row, place = (meshes.tokens.get_local_rank(name) for name in ("data", "cp"))

    def batch(index: int) -> Batch:
        whole, part = divmod(index, parts)

        def own(tensor: Tensor) -> Tensor:
            rows = tensor.chunk(layout.data)[row].chunk(parts)[part]
            rows = rows.chunk(layout.cp, dim=1)[place] if layout.cp > 1 else rows
            return rows.contiguous()

        return pytree.tree_map_only(Tensor, own, given(whole))

    return batch


def _clipped(
    make: Callable[[Iterable[nn.Parameter]], Optimizer],
    most: float | None,
    stages: dist.ProcessGroup,
    parameters: Iterable[nn.Parameter],
) -> Optimizer:
    """Make an optimizer whose `step` first clips the gradients of all ranks."""
    optimizer = make(parameters)

    def clip(*_: object) -> None:
        held = (one for group in optimizer.param_groups for one in group["params"])
        assert most is not None
        clip_on_ranks(held, most, stages)

    if most is not None:
        optimizer.register_step_pre_hook(clip)
    return optimizer


def _shard(roots: Sequence[nn.Module], meshes: Meshes, tuning: ParallelTuning) -> None:
    """Shard the blocks and the rest with FSDP2, in place; experts over ranks of their own."""
    layout = meshes.layout
    dense = meshes.dense["copies", "shards"] if layout.dp > 1 else meshes.dense["shards"]
    reduced = torch.bfloat16 if tuning.reduction == "bf16" else None
    policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    sharded: list[FSDPModule] = []

    def shard(module: nn.Module, mesh: DeviceMesh, **options: Any) -> FSDPModule:
        made = fully_shard(
            module,
            mesh=mesh,
            # Stages keep their weights: each micro-batch would gather them, and zero bubble's
            # second part of a backward pass finds none that were freed.
            reshard_after_forward=tuning.reshard_after_forward and layout.pp == 1,
            mp_policy=policy,
            **options,
        )
        if meshes.dense.device_type == "cpu" and mesh.size() > 1:
            # gloo has no mean. On one rank, torch 2.13 would divide twice.
            made.set_force_sum_reduction_for_comms(True)
        return made

    for root in roots:
        if meshes.experts is not None:
            for experts in experts_of(root):
                apart = shard(
                    experts, meshes.experts["others"], shard_placement_fn=lambda _: Shard(1)
                )
                apart.set_gradient_divide_factor(layout.data)
        for block in find_blocks(root):
            sharded.append(shard(block, dense))
        shard(root, dense)
    prefetch(sharded, tuning.prefetch)


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
    norms = (get_total_norm(own) for own in by_mesh.values())
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in norms]
    square = torch.stack([one**2 for one in whole]).sum()
    if dist.get_world_size(stages) > 1:
        dist.all_reduce(square, group=stages)
    scale = (most / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for one in gradients:
        (one.to_local() if isinstance(one, DTensor) else one).mul_(scale)


# Save a step on many ranks and resume it, also on another layout of the same model.
#
# torch.distributed.checkpoint writes and reshards. A checkpoint counts once all of its ranks have
# written it, so a rank that dies meanwhile leaves the one before.

DONE: Final = ".metadata"  # The file that torch.distributed.checkpoint writes last
NAMED: Final = re.compile(r"^step-(\d+)$")
FLAT: Final = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizer state by parameter, so that stages and shards of another layout find theirs."""
KEPT: Final = 2  # Checkpoints kept: the newest, and the one before


def save(step: TrainingStep, folder: Path, index: int) -> Path:
    """Save weights and optimizer state after step number `index`; all ranks call it together."""
    place = folder / f"step-{index}"
    if dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)  # one that a dead rank left unfinished
    dist.barrier()
    save_shards(_state(step)[1], checkpoint_id=str(place))
    if dist.get_rank() == 0:
        for old in sorted(_finished(folder))[:-KEPT]:
            shutil.rmtree(folder / f"step-{old}")
    dist.barrier()
    return place


def resume(step: TrainingStep, folder: Path) -> int:
    """Load the newest whole checkpoint; return the number of the next step, 0 without one.

    A checkpoint of another layout is resharded. Raises RanksError if it is of another model.
    """
    found = max(_finished(folder), default=None)
    if found is None:
        return 0
    optimizers, state = _state(step)
    try:
        load(state, checkpoint_id=str(folder / f"step-{found}"))
    except (CheckpointException, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise RanksError(
            f"{folder}/step-{found} does not fit this model on this layout ({said[-1][:160]}): "
            "resume the model that it was saved from, or name another folder"
        ) from error
    set_state_dict(
        step.workload.model,
        optimizers,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=FLAT,
    )
    return found + 1


def _state(step: TrainingStep) -> tuple[list[Optimizer], dict[str, Any]]:
    optimizers = [one for one in step.optimizers.values() if isinstance(one, Optimizer)]
    model, optimizer = get_state_dict(step.workload.model, optimizers, options=FLAT)
    return optimizers, {"model": model, "optimizer": optimizer}


def _finished(folder: Path) -> list[int]:
    places = folder.iterdir() if folder.is_dir() else ()
    named = ((NAMED.match(one.name), one) for one in places)
    return [int(found.group(1)) for found, one in named if found and (one / DONE).exists()]
