"""A script's own wrapped model takes what DDP and FSDP2 let be set, and is told the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ratchet.train.workloads.load import load
from ratchet.train.workloads.parallel import ParallelTuning
from ratchet.train.workloads.parallel.meshes import overlap_products, tune


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_takes_a_hook_and_its_script_sets_the_buckets(one_rank: None) -> None:
    workload = load("llama-tiny")
    model = DistributedDataParallel(workload.model)
    left = tune(model, ParallelTuning(bucket_cap_mb=5, reduction="bf16", no_sync=True))
    assert left == [
        "DistributedDataParallel(bucket_cap_mb=5)", "no_sync around all but the last micro-batch",
    ]  # fmt: skip
    assert workload.loss is not None
    workload.loss(model, workload.batch(0)).backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert all(torch.equal(one, one.bfloat16().float()) for one in gradients)


def test_fsdp2_keeps_its_weights_and_its_script_sets_the_dtype(one_rank: None) -> None:
    workload = load("llama-tiny")
    model, mesh = workload.model, init_device_mesh("cpu", (1,))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    first = model.layers[0]
    assert isinstance(first, FSDPModule)
    model(workload.batch(0)[0])
    freed = type(first.attention.q_proj.weight).__name__
    tuning = ParallelTuning(reshard_after_forward=False, prefetch=1, reduction="bf16")
    (left,) = tune(model, tuning)
    assert "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)" in left
    model(workload.batch(0)[0])
    assert freed == "DTensor" and type(first.attention.q_proj.weight).__name__ == "Parameter"


def test_a_model_that_nothing_wraps_is_told_so() -> None:
    assert tune(load("llama-tiny").model, ParallelTuning()) == [
        "DistributedDataParallel or fully_shard around the model"
    ]


def test_products_overlap_with_collectives_only_once_symmetric_memory_is_there(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's pass acts on groups that have it; here it is asked for and not there."""
    import torch._inductor.config as inductor
    from torch.distributed import _symmetric_memory

    asked: list[str] = []
    monkeypatch.setattr(inductor, "_micro_pipeline_tp", False)
    monkeypatch.setattr(_symmetric_memory, "enable_symm_mem_for_group", asked.append)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    overlap_products(mesh)
    assert asked == [mesh.get_group().group_name]
    assert inductor._micro_pipeline_tp
