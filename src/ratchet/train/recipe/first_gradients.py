"""Watch how a script differentiates a model, in the step before the model is compiled.

What torch.compile makes cannot be differentiated twice, and fails only in the script's second
backward pass. So the first step of a model alone runs as written, and shows whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

AUTOGRAD: Any = torch.autograd
MOST_BACKWARDS = 4
"""Backward passes that are watched if no optimizer steps, as where a script accumulates many."""
_watching: list[FirstGradients] = []
_own: Callable[..., Any] = AUTOGRAD._engine_run_backward


class FirstGradients:
    """The backward passes through a model until one of its optimizers steps."""

    def __init__(self, model: nn.Module) -> None:
        self.over = False
        self.twice = False
        """True if a gradient of the model was made to be differentiated again."""
        self._backwards = 0
        self._parameters = {id(one) for one in model.parameters()}
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        _watching.append(self)
        AUTOGRAD._engine_run_backward = _run_backward

    def note(self, outputs: Iterable[Tensor], create_graph: bool) -> None:
        """Take note of a backward pass from `outputs`."""
        if not _reaches(outputs, self._parameters):
            return
        self.twice |= create_graph
        self._backwards += 1
        if self._backwards == MOST_BACKWARDS:
            self.end()

    def release(self) -> None:
        """Take the hook away, outside of an optimizer's step, where torch walks through them."""
        self._hook.remove()

    def end(self) -> None:
        """Watch no longer."""
        self.over = True
        _watching.remove(self)
        if not _watching:
            AUTOGRAD._engine_run_backward = _own

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        groups = (group["params"] for group in optimizer.param_groups)
        if (
            not self.over
            and self._backwards
            and any(id(one) in self._parameters for own in groups for one in own)
        ):
            self.end()


def _run_backward(
    outputs: Sequence[Tensor],
    gradients: object,
    keep_graph: bool,
    create_graph: bool,
    *others: object,
    **named: object,
) -> Any:
    """Stand for what `backward` and `autograd.grad` call, however a script imports them."""
    for one in list(_watching):
        one.note(outputs, create_graph)
    return _own(outputs, gradients, keep_graph, create_graph, *others, **named)


def _reaches(outputs: Iterable[object], parameters: set[int]) -> bool:
    """Return True if the outputs were computed from one of the parameters."""
    # An output is a tensor, or an edge of torch.autograd.graph, which names its node.
    waiting: list[Any] = [getattr(one, "grad_fn", getattr(one, "node", None)) for one in outputs]
    seen: set[object] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in parameters:
            return True
        waiting += [inner for inner, _ in node.next_functions]
    return False
