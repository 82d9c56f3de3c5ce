"""Describe a step in numbers: workload, model, one pass, a trace; runs inside an arm's process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile, record_function

from ratchet.train.recipe import ModelSignature, signature_of
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fake import flops_of
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.trainer import TrainerBatches
from ratchet.train.workloads.updates import unwrapped, why_not_fused, why_not_in_backward
from ratchet.train.workloads.workload import Batch, count, samples_of


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and one step of it as written, in numbers. Those with a default are newer."""

    name: str = ""
    source: str
    unit: str
    device: str = ""
    parameters: int = 0
    trainable_bytes: int
    tokens_per_batch: int
    batch_size: int | None = None  # Samples of one of its batches
    flops_per_step: float | None
    optimizer: str = ""  # The classes of its optimizers
    optimizer_is_adamw: bool
    why_not_fused: str = ""
    why_not_in_backward: str = ""
    own_step: bool = False
    of_trainer: bool = False
    model: ModelSignature | None = None
    can_shrink: bool = False
    written: StepConfig
    uncompiled: tuple[str, ...] = ()  # The kinds of layers that torch.compile leaves to eager code
    has_attention: bool
    is_random: bool = False  # True if the step draws random numbers
    warnings: tuple[str, ...] = ()
    peak_memory_bytes: int = 0
    loss: float | None = None
    setup_s: float = 0.0
    step_time_s: float = 0.0


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's process in its own words, once it has run steps."""

    peak_memory_bytes: int = 0
    compiled_graphs: int = 0  # Graphs that were not in the compile cache
    region_calls: dict[str, int] = {}
    """Calls that the kernels of regions served, by their name in a config."""
    notes: tuple[str, ...] = ()  # Facts that a person should know of how the step runs


def describe_workload(step: TrainingStep, batch: Batch) -> StepFacts:
    """Describe the step, without what an arm measures.

    `step` runs as written. If it is a `train_step`, it trains on `batch` once more.
    """
    workload = step.workload
    parameters = list(step.parameters.values())
    per_step, unit = count(workload, batch)
    made = [one for one in step.optimizers.values() if isinstance(one, torch.optim.Optimizer)]
    layers = (one for one in workload.model.modules() if isinstance(one, nn.RNNBase))
    flops, has_attention, is_random = _one_pass(step, batch)
    return StepFacts(
        name=workload.name,
        source=workload.source,
        unit=unit,
        device=workload.device,
        parameters=sum(p.numel() for p in parameters),
        trainable_bytes=sum(p.numel() * p.element_size() for p in parameters),
        tokens_per_batch=per_step,
        batch_size=max(samples_of(batch), 1),
        flops_per_step=flops,
        optimizer="+".join(type(unwrapped(one)).__name__ for one in made),
        optimizer_is_adamw=[type(one) for one in made] == [torch.optim.AdamW],
        why_not_fused=why_not_fused(made, step.model),
        why_not_in_backward=why_not_in_backward(workload),
        own_step=workload.train_step is not None,
        of_trainer=isinstance(workload.batch, TrainerBatches),
        model=signature_of(workload.model),
        can_shrink=workload.shrink is not None,
        written=workload.as_written(),
        uncompiled=tuple(sorted({type(one).__name__ for one in layers})),
        has_attention=has_attention,
        is_random=is_random,
    )


def _one_pass(step: TrainingStep, batch: Batch) -> tuple[float | None, bool, bool]:
    """Return what one pass shows: FLOPs, `scaled_dot_product_attention`, random draws."""
    workload, watch = step.workload, AttentionWatch()
    before = _generators()
    if workload.train_step is not None:
        with watch:
            flops = flops_of(step, batch)
    else:
        flops = flops_of(step, batch)
        before = _generators()
        with torch.no_grad(), watch:
            step.loss(step.model, workload.batch(0))
    drawn = any(not torch.equal(a, b) for a, b in zip(before, _generators(), strict=True))
    return flops, watch.seen, drawn


class AttentionWatch(TorchFunctionMode):
    """Notes calls of `scaled_dot_product_attention`."""

    seen = False

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.seen |= func is scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def _generators() -> list[torch.Tensor]:
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpus]


def record_steps(
    step: Callable[[Batch], object],
    batches: Sequence[Batch],
    steps: int,
    device: str,
    path: Path,
    *,
    modules: bool = False,
) -> dict[str, object]:
    """Write a Chrome trace of `steps` steps to `path`, with a mark around each step.

    With `modules`, each op lies in the call of its module; every Python call is recorded for it.
    Returns `steps` and `system_s`, the seconds that one step spends in the kernel (JSON).
    """
    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        record_shapes=True,
        acc_events=True,
        with_stack=modules,
        with_modules=modules,
    ) as profiler:
        before_s = os.times().system
        for index in range(steps):
            with record_function(f"ProfilerStep#{index}"):
                step(batches[index % len(batches)])
        system_s = (os.times().system - before_s) / steps
    profiler.export_chrome_trace(str(path))
    return {"steps": steps, "system_s": system_s}
