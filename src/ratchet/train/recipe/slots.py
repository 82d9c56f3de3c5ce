"""Slots: what a recipe puts into a script's objects, while a step runs and no longer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.updates import fuse

ABSENT = object()  # Marks an attribute that its object does not have


class StepSlot(Protocol):
    """A place in one of the script's objects that a recipe uses while a step runs."""

    def fill(self) -> None: ...

    def clear(self) -> None: ...


class Attribute:
    """An attribute in an object's own dictionary; its former value returns afterwards."""

    def __init__(self, holder: object, name: str, value: object) -> None:
        self._held: dict[str, object] = holder.__dict__
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
        def step(*arguments: object, **named: object) -> object:
            with torch.autocast(device_type, enabled=False):
                return self._written()(*arguments, **named)

        super().__init__(optimizer, "step", step)
        self._optimizer = optimizer

    def _written(self) -> Callable[..., object]:
        """Return the script's own step; a schedule may have wrapped it."""
        if self.before is not ABSENT:
            return self.before  # type: ignore[no-any-return]
        return type(self._optimizer).step.__get__(self._optimizer)  # type: ignore[no-any-return]


class FusedUpdate:
    """The fused implementation of one of torch's optimizers."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before: list[tuple[dict[str, object], object, object]] = []

    def fill(self) -> None:
        settings = (self._optimizer.defaults, *self._optimizer.param_groups)
        self._before = [(one, one.get("foreach"), one.get("fused")) for one in settings]
        fuse(self._optimizer)
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


def update_slot(optimizer: Optimizer, config: StepConfig) -> StepSlot | None:
    """Return the slot of the recipe's update; None if the update stays as written."""
    if config.optimizer == "kernel":
        return kernel_slot(optimizer)
    if config.optimizer == "fused":
        return FusedUpdate(optimizer)
    return None


def kernel_slot(optimizer: Optimizer) -> Attribute:
    """Return the slot of an optimizer's step for the AdamW kernel, which torch.compile leaves out.

    Schedules, made before or after, keep working. Raises a KernelError if the kernel cannot step
    this optimizer.
    """
    from ratchet.judge.kernels.library.adamw import check_optimizer  # few recipes have the kernel

    check_optimizer(optimizer)
    update: Callable[..., object] = Optimizer.profile_hook_step(_kernel_step)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def step(self: Optimizer, *given: object, **named: object) -> object:
        self._opt_called = True  # type: ignore[attr-defined]  # a schedule asks for it
        return update(self, *given, **named)

    # torch's schedules wrap the function behind the method and set this mark on it.
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True
    return Attribute(optimizer, "step", MethodType(step, optimizer))


def _kernel_step(optimizer: AdamW, closure: Callable[[], object] | None = None) -> object:
    """Step by the kernel, under the contract of torch's own method."""
    from ratchet.judge.kernels.library.adamw import is_scaled, step_adamw, step_by_torch

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


# Give a script fp32 tensors where it finds them as written, though its modules run in autocast.
#
# What a module returns, or keeps for its next call, may be read outside of the recipe: by numpy,
# by an evaluation between two steps, by a checkpoint.

NOT_KEPT = frozenset({"_parameters", "_modules"})
"""Attributes of a module that hold no tensors of its own making."""


def widened(value: object) -> Any:
    """Return `value` with fp32 tensors in place of bf16 ones, also in the fields of dataclasses."""
    return tree_map(_widened, value)


def _widened(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.float() if leaf.dtype == torch.bfloat16 else leaf
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return leaf
    narrow = [
        field.name
        for field in dataclasses.fields(leaf)
        if _holds(getattr(leaf, field.name, None), torch.bfloat16)
    ]
    if not narrow:
        return leaf
    found = copy.copy(leaf)
    for name in narrow:
        object.__setattr__(found, name, widened(getattr(leaf, name)))
    return found


class WidenedForward(Attribute):
    """A module's forward whose results are fp32, around the one that is in place already."""

    def __init__(self, module: nn.Module) -> None:
        plain = module.forward

        def forward(*given: object, **named: object) -> object:
            written = plain if self.before is ABSENT else self.before
            return widened(written(*given, **named))

        super().__init__(module, "forward", forward)


class KeptTensors:
    """The fp32 tensors that modules keep in attributes and buffers, such as hidden states."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        """Look at what the modules keep after a call as written."""
        inner = {id(one): one for module in modules for one in module.modules()}
        self._places = [
            (held, name)
            for one in inner.values()
            for held in (one.__dict__, one._buffers)
            for name, value in held.items()
            if name not in NOT_KEPT and name != "_buffers" and _holds(value, torch.float32)
        ]

    def widen(self) -> None:
        """Make what a call in autocast has left there fp32 again."""
        for held, name in self._places:
            if _holds(held.get(name), torch.bfloat16):
                held[name] = widened(held[name])


def computes_in_bf16(module: nn.Module) -> bool:
    """Return True for a module with bf16 parameters, whose results are bf16 as written."""
    return any(parameter.dtype == torch.bfloat16 for parameter in module.parameters())


def _holds(value: object, dtype: torch.dtype) -> bool:
    return any(
        isinstance(leaf, Tensor) and leaf.dtype == dtype and not isinstance(leaf, nn.Parameter)
        for leaf in tree_leaves(value)
    )
