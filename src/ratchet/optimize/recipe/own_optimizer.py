"""Install a recipe's update behind the script's optimizer: same object, same groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.errors import RecipeError
from ratchet.kernels.library.adamw import KernelAdamW
from ratchet.workloads.config import StepConfig
from ratchet.workloads.masters import lower_weights
from ratchet.workloads.step import select_implementation

log = logging.getLogger("ratchet")


def install_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: StepConfig
) -> None:
    """Install the recipe's update behind `optimizer.step`, and keep torch.compile out of it.

    A compiled update would be recompiled whenever a schedule changes the learning rate.
    """
    if config.optimizer in ("fused", "foreach"):
        select_implementation(optimizer, config.optimizer)
    masters = lower_weights(model) if config.precision == "bf16_master" else {}
    if config.optimizer == "kernel" or masters:
        replace_update(model, optimizer, masters, kernel=config.optimizer == "kernel")
    else:
        _let_step(optimizer, optimizer.step)


def replace_update(
    model: nn.Module, optimizer: torch.optim.Optimizer, masters: dict[str, Tensor], *, kernel: bool
) -> None:
    """Make `optimizer.step` run another AdamW over the same groups and the same state.

    Learning-rate schedules still change `optimizer.param_groups`, and `state_dict` and
    `load_state_dict` save and load the state that is stepped. Raises RecipeError if the optimizer
    is not torch's AdamW.
    """
    if type(optimizer) is not torch.optim.AdamW:
        raise RecipeError(
            f"the recipe's update is AdamW's, but the script trains with "
            f"{type(optimizer).__name__}: run `ratchet optimize` on this script's workload"
        )
    named = dict(model.named_parameters())
    values = {named[name]: value for name, value in masters.items()}
    replacement = KernelAdamW.taking_over(optimizer, masters=bool(masters), master_values=values)
    replacement.param_groups = optimizer.param_groups
    optimizer.state = replacement.state

    def update(closure: Any = None) -> Any:
        return replacement.step(closure, set_to_none=True)

    def load_state_dict(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        # torch's version would give the optimizer separate state and cast the moments to the dtype
        # of bf16 weights.
        replacement.load_state_dict(state_dict)
        self.param_groups, self.state = replacement.param_groups, replacement.state

    _let_step(optimizer, update)
    optimizer.load_state_dict = MethodType(load_state_dict, optimizer)  # type: ignore[method-assign]
    if not kernel:
        log.info("the recipe has no kernel for AdamW, so the update runs as its torch composite")


def _let_step(optimizer: torch.optim.Optimizer, update: Callable[[Any], Any]) -> None:
    """Make `optimizer.step` run `update`, uncompiled; existing and later schedules keep working."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        self._opt_called = True  # type: ignore[attr-defined]  # a schedule asks for it
        return update(closure)

    # torch's schedules wrap the function behind the method and set this mark on it.
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
