"""Check that a script's step, model and optimizer match those of the recipe.

All checks run before anything is changed. Each mistake is a RecipeError of one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import DeviceError, RecipeError
from ratchet.train.recipe import Recipe, signature_of
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.compiling import is_flattened
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.updates import has_implementation, unwrapped

Optimizers = Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer]
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


def optimizers_of(given: object) -> tuple[Any, ...]:
    """Return the optimizers in a list, a tuple, a dict or alone, without wrappers around them.

    Libraries such as accelerate wrap an optimizer in another, which holds it as `optimizer`.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        given = tuple(given.values())
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    return tuple(unwrapped(one) for one in found)


def check_arguments(
    step: object, model: object, optimizers: tuple[object, ...], check: object = 0
) -> None:
    """Refuse an invalid step, model, optimizer or check; a model alone may stand for the step."""
    call = "ratchet.compile(step, model, optimizer, recipe=...)"
    if not callable(step) or isinstance(step, type):
        raise RecipeError(f"step is {_a(step)}, not a function that runs one step: call {call}")
    if not isinstance(check, int) or isinstance(check, bool) or check < 0:
        raise RecipeError(f"check is {check!r}: give a number of calls, such as 20")
    if isinstance(step, nn.Module) and model is None:
        if check:
            raise RecipeError(f"check={check} needs a step to run twice: call {call}")
        if not optimizers:
            return
        model = step
    if not isinstance(model, nn.Module):
        raise RecipeError(f"model is {_a(model)}, not a torch.nn.Module: call {call}")
    for optimizer in optimizers or (None,):
        if not isinstance(optimizer, Optimizer):
            raise RecipeError(
                f"optimizer is {_a(optimizer)}, not a torch.optim.Optimizer: call {call}"
            )


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
    if is_flattened(model):
        raise RecipeError(
            "FSDP1 has flattened the model's weights, and a recipe is for those of FSDP2: use "
            'fully_shard, or fsdp_config={"version": 2}'
        )
    found = signature_of(model)
    if recipe.model is not None and recipe.model != found:
        shapes = "" if str(found) != str(recipe.model) else ", with other shapes"
        raise RecipeError(
            f"the recipe was proven for {recipe.workload}, {recipe.model}; this is {found}"
            f"{shapes}: {AGAIN}"
        )


def check_optimizers(
    recipe: Recipe, model: nn.Module, optimizers: tuple[Optimizer, ...]
) -> tuple[Optimizer, ...]:
    """Return the optimizers that the recipe is for.

    Refuses a script without one of the recipe's class, an optimizer of another model, and one that
    the recipe's update cannot replace.
    """
    config = recipe.config
    kinds = [type(one).__name__ for one in optimizers]
    wanted = ADAMW if config.optimizer == "kernel" else recipe.optimizer or kinds[0]
    found = tuple(one for one in optimizers if _is_of(one, wanted, config))
    if not found:
        only = "torch's own " if config.optimizer == "kernel" else ""
        raise RecipeError(
            f"the recipe was proven with {only}{wanted}, but the script trains with "
            f"{' and '.join(kinds)}: {AGAIN}"
        )
    # The recipe of a step with several optimizers replaces the updates that it can.
    fitting = tuple(one for one in found if has_implementation(one, config.optimizer, model))
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in fitting or found:
        _check_optimizer(config, optimizer, own)
    return fitting or found


def _is_of(optimizer: Optimizer, wanted: str, config: StepConfig) -> bool:
    exact = type(optimizer) is torch.optim.AdamW or config.optimizer != "kernel"
    return type(optimizer).__name__ in wanted.split("+") and exact


def _check_optimizer(config: StepConfig, optimizer: Optimizer, own: set[int]) -> None:
    kind = type(optimizer).__name__
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(parameter) in own for parameter in held):
        raise RecipeError(
            "the optimizer has no parameter of the model: create it from model.parameters()"
        )
    if config.optimizer == "fused" and "fused" not in optimizer.defaults:
        raise RecipeError(f"{kind} has no fused implementation: {AGAIN}")
    if config.optimizer == "fused" and not all(p.is_floating_point() for p in held):
        raise RecipeError(f"fused {kind} takes no complex parameters: {AGAIN}")


def check_checkpointing(config: StepConfig, model: nn.Module) -> None:
    """Refuse checkpointing for a model without blocks."""
    if config.checkpointing != "none" and not find_blocks(model):
        raise RecipeError(
            f"the recipe recomputes blocks ({config.checkpointing}), but {type(model).__name__} "
            f"has no nn.ModuleList or nn.Sequential of them: {AGAIN}"
        )


def _a(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
