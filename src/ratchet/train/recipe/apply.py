"""Install a recipe in a Ratchet workload or in a user's own training script.

Everything is checked before anything is changed. A kernel that may not be loaded on this machine is
left out: torch's own op runs instead, and one warning names the kernel and the reason.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.base.devices.probe import Device, software
from ratchet.base.errors import ForeignRecipe, RecipeError
from ratchet.train.recipe import Recipe, fits, wanted_libraries
from ratchet.train.recipe.comparison import CheckedStep
from ratchet.train.recipe.compiled_step import CompiledStep, FallbackStep, Script, build
from ratchet.train.recipe.installed import ready_kernels
from ratchet.train.recipe.module_calls import ModuleCall, compile_module
from ratchet.train.recipe.ranks import (
    join_ranks,
    left_out_anywhere,
    on_ranks,
    on_shards,
    one_rank_at_a_time,
)
from ratchet.train.recipe.slots import update_slot
from ratchet.train.workloads.config import AUTOCAST, StepConfig, default_of
from ratchet.train.workloads.workload import Workload

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from ratchet.train.workloads.step import TrainingStep


log = logging.getLogger("ratchet")
Function = TypeVar("Function", bound=Callable[..., object])


def apply(
    workload: Workload,
    recipe: str | Path | Recipe,
    *,
    ledger: str | None = None,
    strict: bool = False,
) -> TrainingStep:
    """Build the workload's step as the recipe runs it: `step(batch) -> loss`.

    Raises RecipeError if the recipe is damaged, or was proven for another model or optimizer.
    Kernels that this machine's ledger does not list as proven are first proven again in the
    sandbox. If that fails, torch's own op runs and one warning gives the reason. A recipe from
    another device or from other versions installs nothing: the step runs as written, after one
    warning. With `strict`, both raise a RecipeError instead.

    A recipe of `--parallel` needs the ranks that it was proven on: start the script with torchrun.
    The ranks are joined, the model is split in place, and each rank's step is given by its own
    share of the batches: `step(batch_of(step.workload, index))`.
    """
    if not isinstance(workload, Workload):
        raise RecipeError(
            f"workload is of type {type(workload).__name__}: give a ratchet.Workload, or use "
            "ratchet.compile(step, model, optimizer, recipe=...)"
        )
    loaded = fits.load_recipe(recipe)
    join_ranks(workload, loaded)
    device = _device_here(loaded, workload.model, strict=strict)
    if device is None:
        return build(on_ranks(workload, loaded, tuned=False), StepConfig())
    fits.check_model(loaded, workload.model)
    fits.check_optimizers(loaded, workload.model, tuple(workload.make_optimizers().values()))
    config = _with_kernels(loaded, loaded.config, ledger=ledger, strict=strict)
    return build(on_ranks(workload, loaded), config)


def compile(
    step: Function,
    model: nn.Module | None = None,
    optimizer: fits.Optimizers | None = None,
    *,
    recipe: str | Path | Recipe,
    ledger: str | None = None,
    strict: bool = False,
    check: int = 0,
) -> Function:
    """Install the recipe in your own training step; call the result as you called `step`.

    `step` runs forward, `backward` and `optimizer.step()`. Its first call runs as written and shows
    Ratchet how the step must be compiled. The model's weights and the optimizers remain the same
    objects; `optimizer` may be a list or a dict of several.

    A loop without a step function gives its model as the step, and its optimizer by name:
    `ratchet.compile(model, optimizer=optimizer, recipe=...)`. With a module alone
    (`ratchet.compile(model, recipe=...)`), only the parts that a module can carry are installed,
    and a warning lists the rest.

    If the recipe's first run of the step raises an error and has changed nothing, the step runs as
    written from then on, and one warning says why.

    With `check`, each of the next `check` calls runs the step twice from the same state, as written
    and by the recipe, and compares what they do. If they differ by more than the recipe's precision
    explains, one warning says in what, and the step runs as written from then on; with `strict`, a
    RecipeError is raised.

    Raises RecipeError under the same conditions as `apply`.
    """
    optimizers = fits.optimizers_of(optimizer)
    fits.check_arguments(step, model, optimizers, check)
    loaded = fits.load_recipe(recipe)
    trained = step if model is None else model
    assert isinstance(trained, nn.Module)
    device = _device_here(loaded, trained, strict=strict)
    if device is None:
        return step
    fits.check_model(loaded, trained)
    fits.check_checkpointing(loaded.config, trained)
    config = loaded.config
    if optimizers:
        optimizers = fits.check_optimizers(loaded, trained, optimizers)
    else:
        config = _of_a_model_alone(config)
    config, left = on_shards(_of_a_script(config), trained)
    for what in left:
        _warn(what)
    config = _with_kernels(loaded, config, ledger=ledger, strict=strict)
    config.enter()
    for name, value in config.variables().items():
        if os.environ.get(name) != value:
            _warn(f"start the script with {name}={value}: the recipe was proven with this setting")
    if loaded.parallel is not None:
        from ratchet.train.workloads.parallel.meshes import tune  # few recipes are for ranks

        for what in tune(trained, loaded.parallel.tuning):
            _warn(f"the recipe also has {what}: set it in the script")
    if isinstance(step, nn.Module):
        for one in optimizers:
            if (update := update_slot(one, config)) is not None:
                update.fill()
        call = compile_module(step, config, device.kind)
        if getattr(optimizer, "scaler", None) is not None and isinstance(optimizer, Optimizer):
            # accelerate's wrapper with a GradScaler keeps the step of its `prepare` until told.
            optimizer.__setstate__({})
        if optimizers and (config.compile_mode is not None or config.precision in AUTOCAST):
            _expect_run(call, optimizers[0], type(step).__name__)
        return step
    script = Script(step=step, model=trained, optimizers=optimizers)
    own = CompiledStep(script, config, device.kind)
    runner = CheckedStep(own, calls=check, strict=strict) if check else FallbackStep(own)

    @functools.wraps(step)
    def compiled(*arguments: object, **named: object) -> object:
        if torch.compiler.is_compiling():
            return step(*arguments, **named)
        return runner(*arguments, **named)

    return compiled  # type: ignore[return-value]


def _expect_run(call: ModuleCall, optimizer: Optimizer, name: str) -> None:
    """Warn after the optimizer's first step if the model has not run by the recipe until then."""

    first = True

    def after_step(*_: object) -> None:
        nonlocal first
        if not first or torch.compiler.is_compiling():  # the script compiles the update
            return
        first = False
        if not call.was_called:
            _warn(
                f"{name} has not run by the recipe: call it as model(...), outside of a "
                "torch.compile of your own, or give the step: ratchet.compile(step, model, "
                "optimizer, recipe=...)"
            )

    optimizer.register_step_post_hook(after_step)  # torch walks through its hooks: it stays


def _device_here(recipe: Recipe, model: nn.Module, *, strict: bool) -> Device | None:
    """Return the model's device; None, after a warning, if the recipe was proven elsewhere."""
    try:
        return fits.check_device(recipe, model, software=software().fingerprint)
    except ForeignRecipe as error:
        if strict:
            raise
        _warn(f"{error}; until then the step runs as written")
        return None


def _with_kernels(
    recipe: Recipe, config: StepConfig, *, ledger: str | None, strict: bool
) -> StepConfig:
    """Load the kernels that `config` needs; return it with torch's own ops for those left out."""
    wanted = wanted_libraries(config)
    installed = [kernel for kernel in recipe.kernels if kernel.library in wanted]
    with one_rank_at_a_time():
        ready = ready_kernels(installed, ledger, recipe=recipe.checksum)
    for name in sorted(wanted - {kernel.library for kernel in installed}):
        ready.left_out[name] = "the recipe contains no kernel for it"
    ready.left_out = left_out_anywhere(recipe, ready.left_out)
    if ready.left_out and strict:
        raise RecipeError(
            f"not proven on this machine: {ready.why()}; run `ratchet optimize` here, or leave "
            "strict out to train with torch's own ops"
        )
    if ready.left_out:
        _warn(
            f"left out in favour of torch's own ops: {ready.why()}; "
            "run `ratchet optimize` here to prove them again"
        )
    ready.activate()
    return ready.without_left_out(config)


def _of_a_model_alone(config: StepConfig) -> StepConfig:
    """Drop the optimizer's part of the config; warn about what a model alone cannot carry."""
    if "linear_cross_entropy" in config.kernels:
        _warn("linear_cross_entropy is installed only if the model computes its loss")
    if config.optimizer == "as_written":
        return config
    _warn("a model alone carries no optimizer, so the recipe's optimizer is not installed")
    return msgspec.structs.replace(config, optimizer="as_written")


def _of_a_script(config: StepConfig) -> StepConfig:
    """Drop the settings that would change a script's meaning, with a warning."""
    left_out = {name: one.not_in_scripts for name, _, one in config.changed() if one.not_in_scripts}
    for name, why in left_out.items():
        _warn(f"{name} is not installed: {why}")
    return msgspec.structs.replace(config, **{name: default_of(name) for name in left_out})


def _warn(what: str) -> None:
    log.warning("ratchet: %s", what)


# Install a recipe in other people's training loops: transformers.Trainer and Lightning.
#
# Each function returns a callback of the library that the script has imported already, so Ratchet
# needs neither of them. accelerate and plain loops take `ratchet.compile`.

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
"""The two names under which Lightning is imported; their classes differ."""


def trainer_callback(
    *, recipe: str | Path | Recipe, ledger: str | None = None, strict: bool = False
) -> Any:
    """Return a callback that makes a `transformers.Trainer` train with the recipe.

    It installs the recipe when training begins: `Trainer(..., callbacks=[trainer_callback(...)])`.
    The model's forward pass is compiled while it trains; evaluation and generation run as written.
    Checkpoints are the Trainer's own, so a run may continue without the recipe, and the other way
    round. The arguments and the errors are those of `ratchet.compile`.
    """
    from transformers import TrainerCallback

    return _callback(_TrainerHooks, TrainerCallback, recipe, ledger, strict)


def lightning_callback(
    *, recipe: str | Path | Recipe, ledger: str | None = None, strict: bool = False
) -> Any:
    """Return a callback that makes a Lightning `Trainer` train with the recipe.

    It installs the recipe when training begins and removes it from the module when training ends:
    `Trainer(..., callbacks=[lightning_callback(...)])`. Validation runs as written. The arguments
    and the errors are those of `ratchet.compile`.
    """
    module = next((sys.modules[name] for name in LIGHTNING if name in sys.modules), None)
    if module is None:
        raise RecipeError(
            "lightning_callback needs the Lightning of the script: import lightning or "
            "pytorch_lightning before it"
        )
    return _callback(_LightningHooks, module.Callback, recipe, ledger, strict)


def _callback(hooks: type[_Hooks], base: type, *arguments: object) -> Any:
    """Return an object of both classes; our hooks come before the library's."""
    return type("RecipeCallback", (hooks, base), {})(*arguments)


class _Hooks:
    """The state that a callback of either library shares."""

    make: Callable[..., object]

    def __init__(self, recipe: str | Path | Recipe, ledger: str | None, strict: bool) -> None:
        super().__init__()
        self.recipe = fits.load_recipe(recipe)
        self.ledger, self.strict = ledger, strict

    def __reduce__(self) -> tuple[object, ...]:
        # Its class has no module to be found in, so a copy is made anew.
        return partial(self.make, recipe=self.recipe, ledger=self.ledger, strict=self.strict), ()

    def _install(self, step: Any, model: Any, optimizer: Any) -> object:
        return compile(
            step, model, optimizer, recipe=self.recipe, ledger=self.ledger, strict=self.strict
        )


class _TrainerHooks(_Hooks):
    """Installs a recipe in the model and the optimizer of a transformers.Trainer."""

    make = staticmethod(trainer_callback)
    _installed: tuple[object, ...] = ()
    """The model and optimizer that have it: a Trainer may train again, or search with new ones."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: object,
        control: object,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **_: object,
    ) -> None:
        if args.torch_compile:
            raise RecipeError(
                "the Trainer's torch_compile=True compiles the model, and so does the recipe: "
                "leave torch_compile out"
            )
        given = model, optimizer
        if not self._installed or any(
            a is not b for a, b in zip(given, self._installed, strict=True)
        ):
            self._install(model, None, optimizer)
            self._installed = given


class _LightningHooks(_Hooks):
    """Installs a recipe in the training step and the optimizer of a LightningModule."""

    make = staticmethod(lightning_callback)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizers = trainer.optimizers
        wanted = optimizers[0] if len(optimizers) == 1 else optimizers
        pl_module.training_step = self._install(pl_module.training_step, pl_module, wanted)

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        vars(pl_module).pop("training_step", None)

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)
