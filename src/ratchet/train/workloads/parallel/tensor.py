"""Layers split over ranks: tensor parallelism (arXiv:1909.08053) and experts of their own.

Experts exchange their tokens by an all-to-all (GShard, arXiv:2006.16668): [E, C, H] of each rank
becomes [E / ep, ep * C, H].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.bert import SelfAttention
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.llama import Attention, SwiGLU
from ratchet.train.workloads.moe import Experts

COLUMNS, ROWS = "columns", "rows"
SPLIT: Final[Mapping[type[nn.Module], Mapping[str, str]]] = {
    Attention: {"q_proj": COLUMNS, "k_proj": COLUMNS, "v_proj": COLUMNS, "o_proj": ROWS},
    SwiGLU: {"gate_proj": COLUMNS, "up_proj": COLUMNS, "down_proj": ROWS},
    SelfAttention: {"query": COLUMNS, "key": COLUMNS, "value": COLUMNS, "out": ROWS},
}
"""Products of each module whose outputs (columns) or inputs (rows) are split."""
WIDE: Final[Mapping[str, int]] = {"gate": 2, "up": 2, "down": 1}
"""The experts' dimension of intermediate features in each of their weights."""


def split_products(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the model's products over a mesh of tensor-parallel ranks, in place.

    Norms and routers stay whole on each rank, and so do tied embeddings.
    """
    blocks = find_blocks(model)
    split = [one for block in blocks for one in block.modules() if type(one) in SPLIT]
    if not any(isinstance(one, Attention | SelfAttention) for one in split):
        raise WorkloadError(
            f"{type(model).__name__} has no attention that tensor parallelism can split: "
            "use llama, moe or bert, or drop tp"
        )
    for module in split:
        parallelize_module(module, mesh, _styles(SPLIT[type(module)]))
        if isinstance(module, SelfAttention):
            module.heads //= mesh.size()
    embedding, head = getattr(model, "embedding", None), getattr(model, "head", None)
    if isinstance(head, nn.Linear) and head.weight is not getattr(embedding, "weight", None):
        parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))


def _styles(split: Mapping[str, str]) -> dict[str, ParallelStyle]:
    return {
        name: ColwiseParallel() if how == COLUMNS else RowwiseParallel()
        for name, how in split.items()
    }


def experts_of(model: nn.Module) -> list[Experts]:
    """Return the model's groups of experts, one a block; empty for a dense model."""
    return [one for one in model.modules() if isinstance(one, Experts)]


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the experts over a mesh with the dimensions `ep` and `tp`, or one of them, in place."""
    names = mesh.mesh_dim_names or ()
    for experts in experts_of(model):
        for name, wide in WIDE.items():
            places = [Shard(0) if one == "ep" else Shard(wide) for one in names]
            whole = experts.get_parameter(name).detach()
            weight = distribute_tensor(whole, mesh, places, src_data_rank=None)
            experts.register_parameter(name, nn.Parameter(weight))
        _exchange_tokens(experts, mesh, names)


def _exchange_tokens(experts: Experts, mesh: DeviceMesh, names: tuple[str, ...]) -> None:
    own: list[Placement] = [Shard(1) if one == "ep" else Replicate() for one in names]
    sent: list[Placement] = [Shard(0) if one == "ep" else Replicate() for one in names]

    def arrive(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (DTensor.from_local(inputs[0], mesh, own).redistribute(placements=sent),)

    def leave(_: nn.Module, inputs: object, output: DTensor) -> Tensor:
        assert all(one == Partial() for one, name in zip(output.placements, names, strict=True)
                   if name == "tp")  # fmt: skip
        return output.redistribute(placements=own).to_local()

    experts.register_forward_pre_hook(arrive)
    experts.register_forward_hook(leave)
