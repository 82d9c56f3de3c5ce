"""Slots: what a recipe puts into a script's objects, while a step runs and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from ratchet.optimize.recipe.own_optimizer import install_optimizer
from ratchet.workloads.config import StepConfig
from ratchet.workloads.implementations import select_implementation

ABSENT = object()
"""Marks an attribute that its object does not have."""


class StepSlot(Protocol):
    """A place in one of the script's objects that a recipe uses while a step runs."""

    def fill(self) -> None: ...

    def clear(self) -> None: ...


class Attribute:
    """An attribute in an object's own dictionary; its former value returns afterwards."""

    def __init__(self, holder: object, name: str, value: Any) -> None:
        self._held: dict[str, Any] = holder.__dict__
        self._name, self._value = name, value
        self.before: Any = ABSENT

    def fill(self) -> None:
        self.before = self._held.get(self._name, ABSENT)
        self._held[self._name] = self._value

    def clear(self) -> None:
        """Put the former value back, unless the script has set another one meanwhile."""
        if self._held.get(self._name) is not self._value:
            return
        if self.before is ABSENT:
            del self._held[self._name]
        else:
            self._held[self._name] = self.before


class StepOutOfGraphs(Attribute):
    """An optimizer's step that torch.compile does not trace and that autocast does not reach.

    A compiled update would be recompiled whenever a schedule changes the learning rate.
    """

    def __init__(self, optimizer: Optimizer, device_type: str) -> None:
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def step(*arguments: Any, **named: Any) -> Any:
            with torch.autocast(device_type, enabled=False):
                return self._written()(*arguments, **named)

        super().__init__(optimizer, "step", step)
        self._optimizer = optimizer

    def _written(self) -> Callable[..., Any]:
        """Return the script's own step; a schedule may have wrapped it."""
        if self.before is not ABSENT:
            return self.before  # type: ignore[no-any-return]
        return type(self._optimizer).step.__get__(self._optimizer)  # type: ignore[no-any-return]


class Implementation:
    """The `foreach` or `fused` implementation of one of torch's optimizers."""

    def __init__(self, optimizer: Optimizer, kind: str) -> None:
        self._optimizer, self._kind = optimizer, kind
        self._before: list[tuple[dict[str, Any], Any, Any]] = []

    def fill(self) -> None:
        settings = (self._optimizer.defaults, *self._optimizer.param_groups)
        self._before = [(one, one.get("foreach"), one.get("fused")) for one in settings]
        select_implementation(self._optimizer, self._kind)
        if self._kind == "fused":
            self._place_steps()

    def clear(self) -> None:
        for settings, foreach, fused in self._before:
            settings["foreach"], settings["fused"] = foreach, fused

    def _place_steps(self) -> None:
        """Put the step counts where the fused implementation reads them: beside the parameters."""
        for parameter, state in self._optimizer.state.items():
            step = state.get("step") if isinstance(state, dict) else None
            if isinstance(step, torch.Tensor) and step.device != parameter.device:
                state["step"] = step.to(parameter.device)


def install_update(optimizer: Optimizer, config: StepConfig) -> None:
    """Make an optimizer update as the recipe says from now on."""
    slot = update_slot(optimizer, config)
    if slot is not None:
        slot.fill()


def update_slot(optimizer: Optimizer, config: StepConfig) -> StepSlot | None:
    """Return the slot of the recipe's update; None if the update stays as written."""
    if config.optimizer == "kernel":
        return kernel_slot(optimizer, config)
    if config.optimizer in ("fused", "foreach"):
        return Implementation(optimizer, config.optimizer)
    return None


def kernel_slot(optimizer: Optimizer, config: StepConfig) -> Attribute:
    """Return the slot of the optimizer's step, for the recipe's own update."""
    before = optimizer.__dict__.get("step")
    install_optimizer(optimizer, config)
    step = optimizer.__dict__.pop("step")
    if before is not None:
        optimizer.__dict__["step"] = before
    return Attribute(optimizer, "step", step)


@contextmanager
def filled(slots: Sequence[StepSlot]) -> Iterator[None]:
    """Fill the slots, and clear them in the reverse order."""
    done: list[StepSlot] = []
    try:
        for slot in slots:
            slot.fill()
            done.append(slot)
        yield
    finally:
        for slot in reversed(done):
            slot.clear()
