"""Build the step of a workload, its own `train_step` included, as a config runs it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.graph.steps import InstalledStep, build_step
from ratchet.optimize.recipe.own_optimizer import install_optimizer
from ratchet.workloads.config import AUTOCAST, StepConfig
from ratchet.workloads.own_step import BatchStep
from ratchet.workloads.recompilation import BoundedCompile
from ratchet.workloads.step import has_implementation, mode_options
from ratchet.workloads.workload import Workload


def build(workload: Workload, config: StepConfig) -> InstalledStep:
    """Build the workload's step as `config` runs it."""
    own = workload.as_written() != config
    return build_step(workload, config, install=_install if own else None)


def _install(
    workload: Workload,
    config: StepConfig,
    options: Mapping[str, Any],
    step: BatchStep,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
) -> BatchStep:
    """Return the step in the config's precision and compiled, its optimizers changed in place."""
    for optimizer in optimizers:
        fits = has_implementation(optimizer, config.optimizer, model)
        own = config if fits else config.model_copy(update={"optimizer": "as_written"})
        install_optimizer(optimizer, own)
    run = _cast(step, workload, config)
    if config.compile_mode is None:
        return run
    return BoundedCompile(run, {**mode_options(config.compile_mode), **options})


def _cast(step: BatchStep, workload: Workload, config: StepConfig) -> BatchStep:
    """Return the step in autocast, unless it enters that itself."""
    if config.precision not in AUTOCAST or workload.precision in AUTOCAST:
        return step
    device_type = workload.device.split(":")[0]

    @functools.wraps(step)
    def with_autocast(batch: Any) -> Any:
        with torch.autocast(device_type, torch.bfloat16):
            return step(batch)

    return with_autocast
