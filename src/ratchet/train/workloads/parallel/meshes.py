"""The ranks of a layout as meshes, this process's place among them, their communication."""

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from ratchet.base.devices.probe import probe
from ratchet.base.errors import DeviceError, RanksError, WorkloadError
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.parallel import ParallelLayout, ParallelTuning

RANK_BYTES: Final = 380_000_000
"""Memory of a rank that holds no model yet: resident, with torch 2.13 on Linux."""
WAIT_S: Final = 120.0  # Time that a rank waits for another before it fails


def rank_device(device: str) -> torch.device:
    """Return this rank's own device: the CPU, or the GPU of its local rank."""
    if not device.startswith("cuda"):
        return torch.device("cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise DeviceError(
            f"local rank {local} has no GPU of its own among {count}: start fewer ranks a node, "
            "or use --device cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def check_devices(layout: ParallelLayout, device: str) -> None:
    """Raise a DeviceError if a layout takes more ranks than this machine has GPUs or memory for.

    Ranks on a CPU share its cores: more ranks than cores are slow, but they run.
    """
    if not device.startswith("cuda"):
        memory_bytes = probe("cpu").memory_bytes
        if layout.world * RANK_BYTES > memory_bytes:
            raise DeviceError(
                f"{layout} takes {layout.world} processes, and this machine's memory holds at most "
                f"{memory_bytes // RANK_BYTES}: lower a degree"
            )
        return
    count = torch.cuda.device_count()
    if layout.world > count:
        raise DeviceError(
            f"{layout} takes {layout.world} GPUs, and this machine has {count}: "
            "lower a degree, or use --device cpu"
        )


def join(device: torch.device, *, wait_s: float = WAIT_S) -> None:
    """Join the ranks that torchrun started, unless this process has joined them already.

    They talk over NCCL or RCCL on GPUs and gloo on CPUs. Raises RanksError without torchrun.
    """
    if dist.is_initialized():
        return
    if "WORLD_SIZE" not in os.environ:
        raise RanksError("there are no ranks to join: start this program with torchrun")
    backend = "nccl" if device.type == "cuda" else "gloo"
    limit = datetime.timedelta(seconds=wait_s)
    store, rank, world = next(rendezvous("env://", timeout=limit))
    # Ranks that torchrun restarts find its store with the addresses of those that died.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backend,
        store=PrefixStore(f"attempt {attempt}", store),
        rank=rank,
        world_size=world,
        timeout=limit,
    )


@contextmanager
def joined(device: torch.device, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Within, be one of the ranks that torchrun started; see `join`."""
    join(device, wait_s=wait_s)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class Meshes:
    """One layout's ranks by what they share.

    FSDP2 shards over `fsdp` and `cp` together, as ranks with other tokens have other gradients.
    """

    layout: ParallelLayout
    dense: DeviceMesh  # Dimensions pp, copies, shards, tp
    tokens: DeviceMesh  # Dimensions pp, data, cp, tp
    experts: DeviceMesh | None  # Dimensions pp, others, ep, tp; None without expert parallelism


def make_meshes(layout: ParallelLayout, device_type: str) -> Meshes:
    """Return the meshes of a layout; WorkloadError unless it takes exactly the ranks there are."""
    if layout.world != dist.get_world_size():
        raise WorkloadError(
            f"{layout} takes {layout.world} ranks, but torchrun started {dist.get_world_size()}: "
            f"use --nproc-per-node={layout.world}, or change a degree"
        )

    def mesh(**sizes: int) -> DeviceMesh:
        return init_device_mesh(
            device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes.keys())
        )

    one = layout
    return Meshes(
        layout=layout,
        dense=mesh(pp=one.pp, copies=one.dp, shards=one.fsdp * one.cp, tp=one.tp),
        tokens=mesh(pp=one.pp, data=one.data, cp=one.cp, tp=one.tp),
        experts=mesh(pp=one.pp, others=one.data // one.ep, ep=one.ep, tp=one.tp)
        if one.ep > 1
        else None,
    )


# DDP reads the annotations of a hook as classes, so this module postpones none.
def reduce_in_bf16(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients in bf16; torch's own hook for this refuses gloo."""
    whole: Tensor = bucket.buffer()
    rounded = (whole / dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(rounded, async_op=True)
    assert work is not None  # of an asynchronous call

    def widened(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return whole.copy_(done.value()[0])

    future: torch.futures.Future[Tensor] = work.get_future().then(widened)
    return future


# Communication in a model that DDP or FSDP2 has wrapped already.

POWER_RANK: Final = 2  # Rank of PowerSGD's factors (arXiv:1905.13727, whose experiments use 1 to 4)


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
