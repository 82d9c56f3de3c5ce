"""Layers and sequences split over ranks: tensor, expert and context parallelism.

Experts exchange their tokens by an all-to-all (GShard, arXiv:2006.16668): [E, C, H] of each rank
becomes [E / ep, ep * C, H].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
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
from torch.overrides import TorchFunctionMode

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.bert import SelfAttention
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.llama import Attention, Llama, SwiGLU
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
        styles: dict[str, ParallelStyle] = {
            name: ColwiseParallel() if how == COLUMNS else RowwiseParallel()
            for name, how in SPLIT[type(module)].items()
        }
        parallelize_module(module, mesh, styles)
        if isinstance(module, SelfAttention):
            module.heads //= mesh.size()
    embedding, head = getattr(model, "embedding", None), getattr(model, "head", None)
    if isinstance(head, nn.Linear) and head.weight is not getattr(embedding, "weight", None):
        parallelize_module(head, mesh, ColwiseParallel(output_layouts=Replicate()))


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


# Context parallelism: each rank has a part of every sequence, and gathers its keys and values.
#
# As in Llama 3's training (arXiv:2407.21783, section 3.3.2), keys and values are gathered whole:
# they are small beside queries where heads are grouped.


class _OverSequence(TorchFunctionMode):
    """Attention inside it is over the whole sequence, of which this rank has one part."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **named)
        query, key, value = args
        if named.pop("is_causal", False):
            named["attn_mask"] = self._causal(query.shape[-2], query.device)
        return func(query, self._gathered(key), self._gathered(value), **named)

    def _gathered(self, part: Tensor) -> Tensor:
        """Gather [B, N, T / cp, D] over ranks to [B, N, T, D]; gradients are summed and split."""
        whole = DTensor.from_local(part, self._mesh, [Shard(2)])
        whole = whole.redistribute(placements=[Replicate()])
        return whole.to_local(grad_placements=[Partial()])

    def _causal(self, length: int, device: torch.device) -> Tensor:
        """Return bool [T / cp, T]: True where a query may see a key."""
        first = self._mesh.get_local_rank() * length
        keys = torch.arange(self._mesh.size() * length, device=device)
        return keys <= keys[first : first + length].unsqueeze(1)


def split_sequence(model: nn.Module, mesh: DeviceMesh, sequence: int) -> None:
    """Make the model's blocks attend over sequences of `sequence` tokens split over a mesh."""
    if not isinstance(model, Llama) or experts_of(model):
        raise WorkloadError(
            f"{type(model).__name__} cannot be split along its sequence: use llama, or drop cp "
            "(experts are assigned by whole sequences)"
        )
    length = sequence // mesh.size()
    first = mesh.get_local_rank() * length
    model.cos, model.sin = (one[first : first + length] for one in (model.cos, model.sin))
    for block in find_blocks(model):
        _enclose(block, mesh)


def _enclose(block: nn.Module, mesh: DeviceMesh) -> None:
    forward = block.forward

    def over_sequence(*args: object, **kwargs: object) -> object:
        with _OverSequence(mesh):
            return forward(*args, **kwargs)

    block.__dict__["forward"] = over_sequence
