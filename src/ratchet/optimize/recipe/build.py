"""Build the step of a workload, its own `train_step` included, as a config runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ratchet.graph.steps import InstalledStep, build_step
from ratchet.optimize.recipe.compiled_step import CompiledStep, Script
from ratchet.workloads.config import AUTOCAST, StepConfig
from ratchet.workloads.implementations import has_implementation
from ratchet.workloads.own_step import BatchStep
from ratchet.workloads.workload import Workload


def build(workload: Workload, config: StepConfig) -> InstalledStep:
    """Build the workload's step as `config` runs it.

    A `train_step` runs as `ratchet.compile` runs a script's: its first call is as written.
    """
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
    """Return the step as `ratchet.compile` would run it."""
    if workload.precision in AUTOCAST and config.precision == workload.precision:
        config = config.model_copy(update={"precision": "fp32"})  # the step enters autocast itself
    fitting = [one for one in optimizers if has_implementation(one, config.optimizer, model)]
    # The step has its checkpointing already.
    config = config.model_copy(update={"checkpointing": "none"})
    script = Script(step=step, model=model, optimizers=fitting)
    return CompiledStep(script, config, workload.device.split(":")[0], options)
