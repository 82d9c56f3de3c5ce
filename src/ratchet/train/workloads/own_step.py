"""A step of the user's own as a function of a batch, and the gradients that its update reads."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.workload import ALONE, Batch, Workload

BatchStep = Callable[[Batch], Any]  # batch -> loss: a whole step
Install = Callable[[BatchStep, nn.Module, Sequence[Optimizer]], BatchStep]
"""Returns the step as a config runs it; it may change the optimizers' updates in place."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """The `train_step` of a script whose step holds its model and its optimizers."""

    step: BatchStep

    def __call__(self, model: nn.Module, batch: Batch, optimizers: object) -> Any:
        return self.step(batch)


def own_step(workload: Workload, optimizers: Mapping[str, Optimizer]) -> BatchStep:
    """Return the workload's `train_step` over its optimizers and its carried state."""
    train_step, model = workload.train_step, workload.model
    assert train_step is not None, "the workload has a loss"
    if isinstance(train_step, ScriptStep):
        return train_step.step
    given: object = optimizers if workload.optimizers is not None else optimizers[ALONE]
    if workload.state is None:
        return lambda batch: train_step(model, batch, given)
    state = workload.state(model, given)
    return lambda batch: train_step(model, batch, given, state)


def loss_returned(workload: Workload, loss: object) -> Tensor:
    """Return the loss that a step of the user's own returned, as a detached scalar tensor.

    It may come alone, first in a tuple, or as `loss` in a dict or an object.
    """
    returned = loss
    if isinstance(loss, tuple | list) and loss:
        loss = loss[0]
    elif isinstance(loss, Mapping):
        loss = loss.get("loss", loss)
    else:
        loss = getattr(loss, "loss", loss)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.detach().reshape(())
    if isinstance(loss, int | float):
        return torch.tensor(float(loss))
    found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(returned)
    found = " ".join(found.split())
    raise WorkloadError.of(
        workload.name,
        f"train_step returned {found[:80]}; return the step's loss, a scalar tensor or a number, "
        "first in a tuple or as `loss` in a dict if there is more",
    )


@contextmanager
def updates_undone(
    parameters: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> Iterator[dict[str, Tensor]]:
    """Within, keep the gradients that each optimizer's first update reads, and undo every update.

    So each gradient of a step with several updates is that of the first weights. The optimizers'
    own state advances. An optimizer that was not given counts if it holds one of the parameters,
    as one inside another does (SAM, Lookahead). Gradients are kept on the CPU, dense, by parameter
    name, in memory that malloc does not see (`ratchet.train.recipe.comparison` says why).
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    kept: dict[str, Tensor] = {}
    before: dict[nn.Parameter, Tensor] = {}

    given = {id(one) for one in optimizers}

    def counts(optimizer: Optimizer) -> bool:
        return id(optimizer) in given or any(id(one) in names for one in _held(optimizer))

    def keep(optimizer: Optimizer) -> None:
        scale = getattr(optimizer, "grad_scale", None)  # a fused update divides by it
        for parameter in _held(optimizer):
            name = names.get(id(parameter))
            if name is not None and name not in kept and parameter.grad is not None:
                gradient = _mapped(parameter.grad)
                kept[name] = gradient if scale is None else gradient.div_(float(scale))

    def look(
        optimizer: Optimizer, arguments: tuple[object, ...], named: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        if not counts(optimizer):
            return None
        before.update({one: _mapped(one.detach()) for one in _held(optimizer)})
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if not callable(closure):
            keep(optimizer)
            return None

        def watched() -> object:
            loss = closure()
            keep(optimizer)
            return loss

        return (optimizer, watched), {}

    def undo(optimizer: Optimizer, *_: object) -> None:
        with torch.no_grad():
            for parameter in _held(optimizer) if counts(optimizer) else ():
                parameter.copy_(before[parameter])

    hooks = [register_optimizer_step_pre_hook(look), register_optimizer_step_post_hook(undo)]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def untraced(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Within, torch.compile leaves the optimizers' updates to Python."""
    kept = [one.__dict__.get("step") for one in optimizers]
    for one in optimizers:
        one.step = torch.compiler.disable(one.step)  # type: ignore[method-assign, no-untyped-call]
    try:
        yield
    finally:
        for one, step in zip(optimizers, kept, strict=True):
            del one.__dict__["step"]
            if step is not None:
                one.step = step  # type: ignore[method-assign]


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _mapped(tensor: Tensor) -> Tensor:
    """Return a dense copy in anonymous pages of its own; of a rank's shard, a plain copy."""
    if is_traceable_wrapper_subclass(tensor):  # type: ignore[unreachable]  # torch's TypeGuard
        return tensor.detach().clone()  # type: ignore[unreachable]
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    if not dense.numel():
        return torch.empty(dense.shape, dtype=dense.dtype)
    memory = mmap.mmap(-1, dense.numel() * dense.element_size())
    copy = torch.frombuffer(memory, dtype=dense.dtype, count=dense.numel()).view(dense.shape)
    return copy.copy_(dense)


@contextmanager
def autocasts(*, off: bool = False) -> Iterator[list[torch.autocast]]:
    """Within, collect the torch.autocast contexts that a step enters; with `off`, disable them."""
    entered: list[torch.autocast] = []
    original: Callable[[torch.autocast], object] = torch.autocast.__enter__

    def enter(self: torch.autocast) -> object:
        if self._enabled:
            entered.append(self)
            self._enabled = not off
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield entered
    finally:
        torch.autocast.__enter__ = original  # type: ignore[method-assign]
