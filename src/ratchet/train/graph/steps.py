"""Build a training step with its configured kernels installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from torch import nn
from torch.optim import AdamW, Optimizer

from ratchet.base.errors import GraphError
from ratchet.train.graph.regions import REGION
from ratchet.train.workloads.compiling import CompileOptions
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.own_step import BatchStep
from ratchet.train.workloads.step import TrainingStep, WeightUpdate
from ratchet.train.workloads.workload import Workload

if TYPE_CHECKING:
    from ratchet.train.graph.scope import InstallReport

InstallOwn = Callable[
    [Workload, StepConfig, CompileOptions, BatchStep, nn.Module, Sequence[Optimizer]],
    BatchStep,
]
"""Makes a `train_step` run as a config says, compiled with the given options."""

CHUNKED: Final = "linear_cross_entropy"


class InstalledStep(TrainingStep):
    """A TrainingStep whose compiled graphs call kernels; `install_report` grows as it compiles."""

    install_report: InstallReport


def install_options(kernels: Sequence[str]) -> CompileOptions:
    """Return the `options=` for a torch.compile call that installs a config's kernels.

    A name is one of the library's, or a region's (`regions.region_name`).
    """
    if not kernels:
        return {}
    # These import Inductor, which a step that compiles nothing does without.
    from ratchet.train.graph.install import compile_options
    from ratchet.train.graph.regions.install import region_options

    regions = [name for name in kernels if name.startswith(REGION)]
    others = [name for name in kernels if name not in regions]
    return {**compile_options(others), **region_options(regions)}


def installed_kernels(config: StepConfig) -> tuple[str, ...]:
    """Return the kernels of a config, with the one that chunks a compiled step's logits."""
    chunked = config.logits == "chunked" and config.compile_mode is not None
    kernels = config.kernels
    return (*kernels, CHUNKED) if chunked and CHUNKED not in kernels else kernels


def build_step(
    workload: Workload, config: StepConfig, *, install: InstallOwn | None = None
) -> InstalledStep:
    """Build the workload's step from `config`, including its kernels and its optimizer kernel.

    The ops run their torch composites until kernels are activated
    (`registry.activate`). Raises GraphError if kernels are given without a compile
    mode, or an optimizer kernel without AdamW. `install` does all of this for a `train_step`.
    """
    options = install_options(installed_kernels(config))
    if options and config.compile_mode is None:
        raise GraphError(
            f"the kernels {', '.join(config.kernels)} need torch.compile: "
            "set compile_mode, or leave kernels empty"
        )
    if workload.train_step is not None:
        own = partial(install, workload, config, options) if install is not None else None
        step = InstalledStep(workload, config, install=own)
    else:
        step = InstalledStep(
            workload,
            config,
            compile_options=options,
            optimizer_factory=kernel_adamw if config.optimizer == "kernel" else None,
        )
    if options:
        from ratchet.train.graph.install import installed_by

        step.install_report = installed_by(options)
    else:
        from ratchet.train.graph.scope import InstallReport

        step.install_report = InstallReport()
    return step


def kernel_adamw(step: TrainingStep) -> WeightUpdate:
    """Return the whole update of `step` by the AdamW kernel: clip, update, drop the gradients.

    Gradients are dropped rather than zeroed unless `preallocate` keeps them. The next backward pass
    then returns its own memory instead of adding to zeros.

    Raises GraphError if the optimizer is not torch's AdamW.
    """
    from ratchet.judge.kernels.library.adamw import AdamWUpdate

    made = list(step.workload.make_optimizers().values())
    written = made[0]
    if len(made) > 1 or type(written) is not AdamW:
        names = ", ".join(type(one).__name__ for one in made)
        raise GraphError(
            f"optimizer 'kernel' replaces one AdamW, but this workload trains with "
            f"{names}: choose as_written or fused"
        )
    return AdamWUpdate(
        written,
        step.workload.clip_norm,
        "zero" if step.config.preallocate else "drop",
        step.copies,
    )
