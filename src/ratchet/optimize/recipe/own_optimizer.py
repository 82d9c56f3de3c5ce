"""Install a recipe's update behind the script's optimizer: same object, same groups, same state."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from ratchet.kernels.library.adamw import check_optimizer, is_scaled, step_adamw, step_by_torch
from ratchet.workloads.config import StepConfig
from ratchet.workloads.implementations import select_implementation


def install_optimizer(optimizer: Optimizer, config: StepConfig) -> None:
    """Install the config's update behind `optimizer.step`, and keep torch.compile out of it.

    A compiled update would be recompiled whenever a schedule changes the learning rate. Raises a
    KernelError, before anything is changed, if the AdamW kernel cannot step this optimizer.
    """
    if config.optimizer == "kernel":
        check_optimizer(optimizer)
        _let_step(optimizer, Optimizer.profile_hook_step(_kernel_step))
        return
    if config.optimizer in ("fused", "foreach"):
        select_implementation(optimizer, config.optimizer)
    step = optimizer.step
    _let_step(optimizer, lambda _, *given, **named: step(*given, **named))


def _kernel_step(optimizer: AdamW, closure: Callable[[], Any] | None = None) -> Any:
    """Step as the method that this replaces: torch's contract, the kernel's arithmetic."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    if is_scaled(optimizer):
        with torch.no_grad():
            step_by_torch(optimizer)
    else:
        step_adamw(optimizer)
    return loss


def _let_step(optimizer: Optimizer, update: Callable[..., Any]) -> None:
    """Make `optimizer.step` run `update`, uncompiled; existing and later schedules keep working."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self: Optimizer, *given: Any, **named: Any) -> Any:
        self._opt_called = True  # type: ignore[attr-defined]  # a schedule asks for it
        return update(self, *given, **named)

    # torch's schedules wrap the function behind the method and set this mark on it.
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def replace_update(_: nn.Module, optimizer: Optimizer, __: object, *, kernel: bool) -> None:
    """Make `optimizer.step` run the AdamW kernel, or its own update outside of graphs.

    The model and its masters were needed while parameters were bf16; they are read no longer.
    """
    install_optimizer(optimizer, StepConfig(optimizer="kernel" if kernel else "as_written"))
