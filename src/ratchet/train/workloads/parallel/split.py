"""Layers, sequences and stages split over ranks: tensor, expert, context, pipeline parallelism.

Experts exchange their tokens by an all-to-all (GShard, arXiv:2006.16668): [E, C, H] of each rank
becomes [E / ep, ep * C, H].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
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
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.bert import SelfAttention
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.llama import Attention, Llama, SwiGLU
from ratchet.train.workloads.lowered import mixed_precision
from ratchet.train.workloads.moe import Experts
from ratchet.train.workloads.parallel import ParallelLayout
from ratchet.train.workloads.workload import LossFunction, Workload

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


StageOutput = Tensor | tuple[Tensor, Tensor]


class LlamaStage(nn.Module):
    """Some layers of a Llama or MoE: tokens or x [B, T, H] -> x, or logits at the end.

    With experts, x goes with the sum of the balance losses so far, [1].
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, model: Llama, layers: range, workload: Workload) -> None:
        super().__init__()
        count = len(model.layers)
        self.embedding = model.embedding if layers.start == 0 else None
        self.layers = nn.ModuleList(model.layers[index] for index in layers)
        self.norm = model.norm if layers.stop == count else None
        self.head = model.head if layers.stop == count else None
        self.count = count
        self.precision = workload.precision
        self.device_type = workload.device.split(":")[0]
        self.register_buffer("cos", model.cos, persistent=False)
        self.register_buffer("sin", model.sin, persistent=False)

    def forward(self, x: Tensor, balance: Tensor | None = None) -> StageOutput:
        with mixed_precision(self.precision, self.device_type):
            return self._run(x, balance)

    def _run(self, x: Tensor, balance: Tensor | None) -> StageOutput:
        length = x.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            out = layer(x, cos, sin)
            if isinstance(out, tuple):
                x, own = out
                balance = own.view(1) if balance is None else balance + own
            else:
                x = out
        if self.norm is None or self.head is None:
            return x if balance is None else (x, balance)
        logits = self.head(self.norm(x))
        return logits if balance is None else (logits, balance.squeeze(0) / self.count)


class _Stage(PipelineStage):
    """A stage that greets other ranks alone.

    torch 2.11 also greets the rank itself at the turn of a V, which gloo cannot send.
    """

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        greetings: list[dist.P2POp] = super()._get_init_p2p_neighbors_ops()
        return [one for one in greetings if one.group_peer != self.group_rank]


def stage_places(layout: ParallelLayout, rank: int) -> list[int]:
    """Return the stages of one rank of the pipeline: a loop of them, or a V for zero bubble."""
    last = layout.pp * layout.vpp - 1
    if layout.schedule == "zero-bubble":
        return [rank, last - rank]
    return [rank + turn * layout.pp for turn in range(layout.vpp)]


def cut(workload: Workload, layout: ParallelLayout, rank: int) -> dict[int, LlamaStage]:
    """Return the stages of `rank`, by number, and drop all other layers from the model.

    Parameters keep their names in the model.
    """
    model = workload.model
    tied = getattr(getattr(model, "head", None), "weight", None) is getattr(
        getattr(model, "embedding", None), "weight", None
    )
    if not isinstance(model, Llama) or tied:
        raise WorkloadError(
            f"{workload.name} cannot be cut into stages: use a llama or moe whose embeddings are "
            "not tied, or drop pp"
        )
    count, parts = len(model.layers), layout.pp * layout.vpp
    bounds = [count * part // parts for part in range(parts + 1)]
    stages = {
        place: LlamaStage(model, range(bounds[place], bounds[place + 1]), workload)
        for place in stage_places(layout, rank)
    }
    kept = {id(module) for stage in stages.values() for module in stage.modules()}
    for index, layer in enumerate(model.layers):
        if id(layer) not in kept:
            model.layers[index] = nn.Identity()
    for name in ("embedding", "norm", "head"):
        if id(getattr(model, name)) not in kept:
            setattr(model, name, nn.Identity())
    return stages


def pipelined_step(
    stages: dict[int, LlamaStage],
    layout: ParallelLayout,
    loss: LossFunction,
    device: torch.device,
    group: dist.ProcessGroup,
) -> Callable[..., Tensor]:
    """Return a `train_step` that runs the stages by their schedule and updates their weights."""
    parts = layout.pp * layout.vpp
    own = [_Stage(stage, place, parts, device, group=group) for place, stage in stages.items()]

    def loss_of(output: object, targets: Tensor) -> Tensor:
        return loss(_Given(output), (targets, targets))

    kinds: dict[str, Callable[..., Any]] = {
        "interleaved": ScheduleInterleaved1F1B,
        "zero-bubble": ScheduleZBVZeroBubble,
    }
    schedule: Any = (
        Schedule1F1B(own[0], layout.micro, loss_fn=loss_of)
        if layout.schedule == "1f1b"
        else kinds[layout.schedule](own, layout.micro, loss_fn=loss_of)
    )

    def train_step(model: nn.Module, batch: tuple[Tensor, Tensor], optimizer: Optimizer) -> Tensor:
        tokens, targets = batch
        losses: list[Tensor] = []
        inputs = (tokens,) if 0 in stages else ()
        if parts - 1 in stages:
            schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.stack([one.detach() for one in losses]).mean() if losses else None
        told = torch.zeros((), device=device) if mean is None else mean.float()
        dist.all_reduce(told, group=group)
        return told

    return train_step


class _Given(nn.Module):
    """A model whose output is known."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self._output = output

    def forward(self, _: object) -> object:
        return self._output
