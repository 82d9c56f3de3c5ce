"""Check that a script's step, model and optimizer match those of the recipe.

All checks run before anything is changed. Each mistake is a RecipeError of one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ratchet.devices.probe import Device, probe
from ratchet.errors import DeviceError, RecipeError
from ratchet.optimize.recipe.recipe import Recipe
from ratchet.optimize.step.signature import signature_of

AGAIN = "run `ratchet optimize` on this script's workload"
ADAMW = torch.optim.AdamW.__name__


def load_recipe(recipe: object) -> Recipe:
    """Return the recipe itself, or read it from its path."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return Recipe.load(recipe)
    raise RecipeError(
        f"recipe is {_a(recipe)}: give the path of the recipe.json that `ratchet optimize` wrote"
    )


def check_arguments(step: object, model: object, optimizer: object) -> None:
    """Refuse an invalid step, model or optimizer; a model alone may stand for the step."""
    call = "ratchet.compile(step, model, optimizer, recipe=...)"
    if not callable(step) or isinstance(step, type):
        raise RecipeError(f"step is {_a(step)}, not a function that runs one step: call {call}")
    if isinstance(step, nn.Module) and model is None and optimizer is None:
        return
    if not isinstance(model, nn.Module):
        raise RecipeError(f"model is {_a(model)}, not a torch.nn.Module: call {call}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(f"optimizer is {_a(optimizer)}, not a torch.optim.Optimizer: call {call}")


def check_device(recipe: Recipe, model: nn.Module, *, software: str) -> Device:
    """Return the model's device; refuse a recipe from another device or version."""
    place = torch_device(model)
    try:
        device = probe(str(place))
    except DeviceError as error:
        raise RecipeError(
            f"the model is on {str(place)!r}, but recipes support only cpu and cuda; move the model"
        ) from error
    recipe.check_here(
        device=device.fingerprint,
        device_name=f"{device.model} ({place})",
        software=software,
    )
    return device


def torch_device(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters or buffers; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def check_model(recipe: Recipe, model: nn.Module) -> None:
    """Refuse a model whose parameters differ from the recipe's or have no shapes yet."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise RecipeError("the model has lazy parameters: run one batch through it first")
    found = signature_of(model)
    if recipe.model is not None and recipe.model != found:
        shapes = "" if str(found) != str(recipe.model) else ", with other shapes"
        raise RecipeError(
            f"the recipe was proven for {recipe.workload}, {recipe.model}; this is {found}"
            f"{shapes}: {AGAIN}"
        )


def check_optimizer(recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer of another class or model, or one that the kernel cannot replace."""
    kind = type(optimizer).__name__
    config = recipe.config
    replaced = config.optimizer == "kernel"
    wanted = recipe.optimizer or (ADAMW if replaced else kind)
    exact = type(optimizer) is torch.optim.AdamW or not replaced
    if kind != wanted or not exact:
        raise RecipeError(
            f"the recipe was proven with {wanted}, but the script trains with {kind}: {AGAIN}"
        )
    own = {id(parameter) for parameter in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(parameter) in own for parameter in held):
        raise RecipeError(
            "the optimizer has no parameter of the model: create it from model.parameters()"
        )
    if config.optimizer in ("fused", "foreach") and config.optimizer not in optimizer.defaults:
        raise RecipeError(f"{kind} has no {config.optimizer} implementation: {AGAIN}")


def _a(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
