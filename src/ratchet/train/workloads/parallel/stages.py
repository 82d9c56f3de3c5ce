"""A model cut into the stages of a pipeline, and the schedule that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.optim import Optimizer

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.llama import Llama
from ratchet.train.workloads.lowered import mixed_precision
from ratchet.train.workloads.parallel import ParallelLayout
from ratchet.train.workloads.workload import LossFunction, Workload

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
