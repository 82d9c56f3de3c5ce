"""The implementations that torch's own optimizers have: fused and foreach updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.base.errors import WorkloadError

FUSED: Final = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose fused and foreach updates compute what their plain ones do."""


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


def writes_gradients(optimizer: Optimizer) -> bool:
    """Return True if a foreach update leaves its own work in `.grad`, which the plain one does not.

    Torch adds Nesterov's momentum in place there. On a GPU, foreach is what runs as written.
    """
    return any(
        bool(group.get("nesterov")) and any(not one.is_cuda for one in group["params"])
        for group in optimizer.param_groups
    )


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


def select_implementation(optimizer: Optimizer, kind: str) -> None:
    """Switch a torch optimizer to its `foreach` or `fused` implementation.

    Raises WorkloadError if the optimizer has no such implementation.
    """
    other = "fused" if kind == "foreach" else "foreach"
    for settings in (optimizer.defaults, *optimizer.param_groups):
        if kind not in settings:
            raise WorkloadError(
                f"optimizer {type(optimizer).__name__} has no {kind} implementation; "
                "use optimizer as_written"
            )
        settings[kind], settings[other] = True, False
    if kind == "foreach":
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
