"""Describe a workload in the numbers that the turn needs; runs inside an arm's process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from ratchet.optimize.step.signature import signature_of
from ratchet.workloads.counting import count
from ratchet.workloads.flops import flops_of
from ratchet.workloads.implementations import unwrapped, why_not_fused
from ratchet.workloads.step import TrainingStep
from ratchet.workloads.trainer import TrainerBatches


def describe_workload(step: TrainingStep, batch: Any) -> dict[str, Any]:
    """Return parameters, tokens and FLOPs of one step, and the step's own settings (JSON).

    `step` runs as written. If it is a `train_step`, it trains on `batch` once more.
    """
    workload = step.workload
    parameters = list(step.parameters.values())
    counted = count(workload, batch)
    seen = observe(step, batch)
    made = [one for one in step.optimizers.values() if isinstance(one, torch.optim.Optimizer)]
    return {
        "name": workload.name,
        "source": workload.source,
        "unit": counted.unit,
        "device": workload.device,
        "parameters": sum(p.numel() for p in parameters),
        "trainable_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "tokens_per_batch": counted.per_step,
        "optimizer_is_adamw": [type(one) for one in made] == [torch.optim.AdamW],
        "optimizer": "+".join(type(unwrapped(one)).__name__ for one in made),
        "why_not_fused": why_not_fused(made, step.model),
        "own_step": workload.train_step is not None,
        "of_trainer": isinstance(workload.batch, TrainerBatches),
        "model": signature_of(workload.model).model_dump(),
        "can_shrink": workload.shrink is not None,
        "written": workload.as_written().model_dump(),
        "uncompiled": uncompiled_layers(workload.model),
        **seen,
    }


def observe(step: TrainingStep, batch: Any) -> dict[str, Any]:
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
    return {"flops_per_step": flops, "has_attention": watch.seen, "is_random": drawn}


class AttentionWatch(TorchFunctionMode):
    """Notes calls of `scaled_dot_product_attention`."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= func is scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def _generators() -> list[torch.Tensor]:
    """Return the states of torch's own generators."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpus]


def uncompiled_layers(model: nn.Module) -> list[str]:
    """Return the kinds of layers that torch.compile leaves to eager code."""
    return sorted({type(one).__name__ for one in model.modules() if isinstance(one, nn.RNNBase)})
