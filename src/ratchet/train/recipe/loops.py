"""Install a recipe in other people's training loops: transformers.Trainer and Lightning.

Each function returns a callback of the library that the script has imported already, so Ratchet
needs neither of them. accelerate and plain loops take `ratchet.compile`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.base.errors import RecipeError
from ratchet.train.recipe import fits
from ratchet.train.recipe.apply import compile as install
from ratchet.train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from transformers import TrainingArguments

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
        return install(
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
