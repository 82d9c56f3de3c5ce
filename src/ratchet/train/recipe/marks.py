"""Marks of what a script's first run by a recipe may change, to go back before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ratchet.train.recipe.snapshot import of_random_states, set_random_states

RAISED = (RuntimeError, TypeError, AssertionError)
"""Errors of a step that torch.compile or a kernel may cause."""


class Marks:
    """Marks of what a run may change: versions of tensors, gradients, numbers, random states."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        optimizers: Iterable[Optimizer] = (),
        numbers: Callable[[], object] = lambda: None,
    ) -> None:
        """Mark the state of modules and optimizers; `numbers` reads the numbers beside them."""
        held = _each_once([*_of_modules(modules), *_of_optimizers(optimizers)])
        self._versions = [(one, one._version) for one in held if not one.is_inference()]
        self._gradients = [_Gradient(one) for one in held if one.is_leaf]
        self._numbers, self._before = numbers, numbers()
        self._random = of_random_states()

    def undo(self) -> bool:
        """Put gradients and random states back; return False if more has changed.

        A step that opens with `zero_grad()` has dropped its gradients, which the marks hold; with
        `set_to_none=False` it has written zeros into them, and the marks hold what they were.
        """
        if any(one._version != version for one, version in self._versions):
            return False
        if self._numbers() != self._before:
            return False
        if not all(one.can_be_put_back() for one in self._gradients):
            return False
        for one in self._gradients:
            one.put_back()
        set_random_states(self._random)
        return True


def _of_modules(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def _of_optimizers(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
        for state in optimizer.state.values():
            if isinstance(state, dict):
                yield from (value for value in state.values() if isinstance(value, Tensor))


def _each_once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(one): one for one in tensors}.values())


class _Gradient:
    """A tensor's gradient and what it was; the copy lies in the CPU's memory."""

    def __init__(self, of: Tensor) -> None:
        self._of, self._grad = of, of.grad
        self._version, self._copy = 0, None
        if self._grad is not None:
            self._version = self._grad._version
            if type(self._grad) is Tensor and self._grad.layout == torch.strided:
                self._copy = self._grad.detach().to("cpu", copy=True)

    def _has_changed(self) -> bool:
        return self._grad is not None and self._grad._version != self._version

    def can_be_put_back(self) -> bool:
        """Return False for a sparse or sharded gradient that was written into."""
        return self._copy is not None or not self._has_changed()

    def put_back(self) -> None:
        if self._grad is not None and self._copy is not None and self._has_changed():
            self._grad.detach().copy_(self._copy)
        self._of.grad = self._grad
