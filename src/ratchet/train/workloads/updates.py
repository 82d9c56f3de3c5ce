"""Updates by an optimizer: torch's fused form, and updates during backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.workload import Workload

FUSED: Final = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose fused updates compute what their plain ones do."""


def unwrapped(optimizer: object) -> Any:
    """Return the optimizer inside wrappers that hold it as `optimizer`, such as accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    wraps = isinstance(optimizer, Optimizer) and isinstance(inner, Optimizer)
    return unwrapped(inner) if wraps else optimizer


def has_implementation(optimizer: Optimizer, kind: str, model: nn.Module) -> bool:
    """Return True if an optimizer can run a config's kind of update on its parameters.

    All but `as_written` need one of torch's own classes, real parameters and dense gradients.
    """
    if kind == "as_written":
        return True
    classes = (torch.optim.AdamW,) if kind == "kernel" else FUSED
    return type(optimizer) in classes and not unfit_parameters(optimizer, model)


def unfit_parameters(optimizer: Optimizer, model: nn.Module) -> str:
    """Return why an optimizer's parameters take no fused update; empty if they do."""
    held = {id(one): one for group in optimizer.param_groups for one in group["params"]}
    if any(one.is_complex() for one in held.values()):
        return "a parameter is complex"
    tables = [one for one in model.modules() if getattr(one, "sparse", False) is True]
    if any(id(weight) in held for table in tables for weight in table.parameters()):
        return "a layer has sparse gradients"
    return ""


def why_not_fused(optimizers: Sequence[Optimizer], model: nn.Module) -> str:
    """Return why none of the optimizers can run a fused update; empty if one can."""
    if any(has_implementation(one, "fused", model) for one in optimizers):
        return ""
    known = [one for one in optimizers if type(one) in FUSED]
    if known:
        return unfit_parameters(known[0], model)
    names = ", ".join(type(one).__name__ for one in optimizers)
    return f"the optimizer is {names}, not torch's SGD, Adam or AdamW"


def fuse(optimizer: Optimizer) -> None:
    """Switch a torch optimizer to its fused implementation.

    Raises WorkloadError if the optimizer has none.
    """
    for settings in (optimizer.defaults, *optimizer.param_groups):
        if "fused" not in settings:
            raise WorkloadError(
                f"optimizer {type(optimizer).__name__} has no fused implementation; "
                "use optimizer as_written"
            )
        settings["fused"], settings["foreach"] = True, False


# Update each parameter when its gradient is there, so that no two gradients are held at a time.
#
# From torch's tutorial "How to save memory by fusing the optimizer step into the backward pass".
# The script's own optimizer steps, once for each parameter, so its state and its schedules stay as
# they are.


def why_not_in_backward(workload: Workload) -> str:
    """Return why a workload's update must wait for all gradients; empty if it need not."""
    if workload.train_step is not None:
        return "the workload's own train_step updates"
    if workload.clip_norm is not None:
        return "clipping needs all gradients at once"
    return "a step that accumulates adds its gradients up" if workload.accumulate > 1 else ""


def check_in_backward(workload: Workload, config: StepConfig) -> None:
    """Raise WorkloadError if the config's step cannot update in its backward pass."""
    why = why_not_in_backward(workload)
    if not why and config.micro_batches > 1:
        why = "micro-batches add their gradients up"
    if not why and (config.optimizer == "kernel" or config.precision == "bf16_master"):
        why = f"optimizer {config.optimizer} with {config.precision} updates all weights at once"
    if why:
        raise WorkloadError(f"workload {workload.name!r} cannot update in its backward pass: {why}")


class UpdateInBackward:
    """Hooks that step one optimizer each, while `open`."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._open = False
        self._owners: dict[Tensor, tuple[Optimizer, dict[str, object]]] = {
            one: (optimizer, group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for one in group["params"]
        }
        self._hooks: list[RemovableHandle] = [
            one.register_post_accumulate_grad_hook(self._update)  # type: ignore[no-untyped-call]
            for one in self._owners
        ]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Update within; outside, gradients stay where backward leaves them."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _update(self, parameter: Tensor) -> None:
        if not self._open:
            return
        optimizer, own = self._owners[parameter]
        before = [group["params"] for group in optimizer.param_groups]
        try:
            for group in optimizer.param_groups:
                group["params"] = [parameter] if group is own else []
            optimizer.step()
        finally:
            for group, parameters in zip(optimizer.param_groups, before, strict=True):
                group["params"] = parameters
        parameter.grad = None
