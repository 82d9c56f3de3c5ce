"""A recipe put to work: in a Ratchet workload, or in a training script of one's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ratchet.devices.fingerprint import software
from ratchet.devices.probe import probe
from ratchet.errors import RecipeError
from ratchet.graph.install import compile_options
from ratchet.graph.steps import build_step
from ratchet.judge.kernel_trial import judge_kernel
from ratchet.judge.revision import revision
from ratchet.kernels.languages import cpp
from ratchet.kernels.library import LIBRARY, WorkloadShapes, activate
from ratchet.kernels.library.adamw import KernelAdamW
from ratchet.ledger import Fingerprint, Ledger
from ratchet.optimize import allocators
from ratchet.optimize.installed import InstalledKernel, find_kernel
from ratchet.optimize.recipe import Recipe
from ratchet.workloads import process
from ratchet.workloads.config import StepConfig
from ratchet.workloads.masters import lower_weights
from ratchet.workloads.step import TrainingStep
from ratchet.workloads.workload import Workload

log = logging.getLogger("ratchet")
Function = TypeVar("Function", bound=Callable[..., Any])


def apply(
    workload: Workload, recipe: str | Path | Recipe, *, ledger: str | None = None
) -> TrainingStep:
    """The workload's step as the recipe runs it: `step(batch) -> loss`.

    Raises RecipeError for a recipe that is damaged, or from another device or version. A kernel
    that this machine's ledger does not hold as proven is proved again first, in the sandbox.
    """
    loaded = _ready(recipe, ledger)
    return build_step(workload, loaded.config)


def compile(
    step: Function,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    recipe: str | Path | Recipe,
    ledger: str | None = None,
) -> Function:
    """A training step of your own with the recipe installed; call it as you called `step`.

    `step` runs forward, `backward` and `optimizer.step()`. The model's weights and the optimizer
    stay the same objects. Given a module alone (`ratchet.compile(model, recipe=...)`), what a
    module can carry is installed and what it cannot is logged as a warning.

    Raises RecipeError as `apply` does.
    """
    loaded = _ready(recipe, ledger)
    config = loaded.config
    process.enter(config)
    _warn_of_environment(config)
    if isinstance(step, nn.Module) and model is None:
        return _compile_module(step, config)  # type: ignore[return-value]
    if model is not None and optimizer is not None:
        _install_optimizer(model, optimizer, config)
    elif config.precision == "bf16_master" or config.optimizer == "kernel":
        _warn("the optimizer's part of the recipe needs the model and the optimizer")
        config = _without_optimizer(config)
    return _compiled(step, config)


def _ready(recipe: str | Path | Recipe, ledger_url: str | None) -> Recipe:
    """Load and check the recipe, and activate its kernels; all proven here, or none is loaded."""
    loaded = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    device = probe("auto")
    here = software().fingerprint
    loaded.check_here(device=device.fingerprint, device_name=device.model, software=here)
    installed = [InstalledKernel(**kernel.model_dump()) for kernel in loaded.kernels]
    with Ledger.open(ledger_url) as ledger:
        fingerprint = ledger.here(device)
        for kernel in installed:
            if not ledger.proven(kernel.hash, fingerprint, judge=revision()):
                _prove_again(kernel, ledger, fingerprint)
    for kernel in installed:
        found = find_kernel(kernel)
        activate(found, cpp.compile_kernel(found))
    return loaded


def _prove_again(installed: InstalledKernel, ledger: Ledger, fingerprint: Fingerprint) -> None:
    """Judge a kernel that the ledger does not know, on the library's own problems."""
    kernel = find_kernel(installed)
    for problem in LIBRARY[installed.library].problems(WorkloadShapes()):
        if problem.name == kernel.entry:
            verdict = judge_kernel(kernel, problem)
            ledger.record_verdict(verdict.model_dump(mode="json"), fingerprint=fingerprint)
    if not ledger.proven(kernel.hash, fingerprint, judge=revision()):
        raise RecipeError(
            f"kernel {installed.entry} is not proven on this machine and could not be proved "
            "again: run `ratchet optimize` here"
        )


def _compiled(step: Function, config: StepConfig) -> Function:
    """The step under the recipe's precision and torch.compile, its kernels in the graphs."""
    if config.precision == "fp32":
        wrapped: Callable[..., Any] = step
    else:

        def wrapped(*arguments: Any, **named: Any) -> Any:
            with torch.autocast(_device_type(), torch.bfloat16):
                return step(*arguments, **named)

    if config.compile_mode is None:
        return wrapped  # type: ignore[return-value]
    from torch._inductor import list_mode_options

    options = {**list_mode_options(config.compile_mode), **compile_options(config.kernels)}
    return torch.compile(wrapped, dynamic=False, options=options or None)  # type: ignore[return-value]


def _compile_module(module: nn.Module, config: StepConfig) -> nn.Module:
    if config.optimizer != "as_written" or config.precision == "bf16_master":
        _warn("a model alone carries no optimizer: the optimizer's part is not installed")
        config = _without_optimizer(config)
    if "linear_cross_entropy" in config.kernels:
        _warn("linear_cross_entropy is installed only where the loss is computed in the model")
    module.forward = _compiled(module.forward, config)
    return module


def _install_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: StepConfig
) -> None:
    """Put the recipe's update behind the optimizer the script holds: same object, same groups."""
    if config.optimizer in ("fused", "foreach"):
        from ratchet.workloads.step import select_implementation

        select_implementation(optimizer, config.optimizer)
    masters = lower_weights(model) if config.precision == "bf16_master" else {}
    if config.optimizer != "kernel" and not masters:
        return
    replace_update(model, optimizer, masters, kernel=config.optimizer == "kernel")


def replace_update(
    model: nn.Module, optimizer: torch.optim.Optimizer, masters: dict[str, Tensor], *, kernel: bool
) -> None:
    """Let `optimizer.step` run another AdamW over the same groups and the same state.

    A learning-rate schedule goes on changing `optimizer.param_groups`, and `state_dict` goes on
    saving what is stepped. Raises RecipeError where the optimizer is not torch's AdamW.
    """
    if type(optimizer) is not torch.optim.AdamW:
        raise RecipeError(
            f"the recipe's update is AdamW's and the script trains with "
            f"{type(optimizer).__name__}: run `ratchet optimize` on this script's workload"
        )
    named = dict(model.named_parameters())
    values = {named[name]: value for name, value in masters.items()}
    replacement = KernelAdamW.taking_over(optimizer, masters=bool(masters), master_values=values)
    replacement.param_groups = optimizer.param_groups
    optimizer.state = replacement.state

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(closure: Any = None) -> Any:
        return replacement.step(closure, set_to_none=True)

    optimizer.step = step  # type: ignore[method-assign]
    if not kernel:
        log.info("the update runs as AdamW's torch composite: the recipe has no kernel for it")


def _without_optimizer(config: StepConfig) -> StepConfig:
    changes: dict[str, object] = {"optimizer": "as_written"}
    if config.precision == "bf16_master":
        changes["precision"] = "bf16_autocast"
    return config.model_copy(update=changes)


def _device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _warn_of_environment(config: StepConfig) -> None:
    """Settings that a process must start with cannot be made here: say which are missing."""
    for name, value in allocators.environment(config).items():
        if os.environ.get(name) != value:
            _warn(f"start the script with {name}={value}: the recipe was proven so")


def _warn(what: str) -> None:
    log.warning("ratchet: %s", what)
