"""Watch the first call of a step, which runs as written and shows how the step must be run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ratchet.train.recipe.script_state import loses_gradient, numbers
from ratchet.train.workloads.checkpointing import find_blocks, is_transformed

AUTOGRAD: Any = torch.autograd
AUTOCAST_DEVICES = ("cpu", "cuda")
WATCHING = threading.RLock()
"""Held while a first call is watched: what is watched belongs to all threads."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(kw_only=True)
class Seen:
    """The observed acts of one call of a step."""

    backwards: int = 0  # Backward passes, by `backward()` or `torch.autograd.grad`
    keeps_graph: bool = False  # True if a backward pass kept its graph for another one
    twice: bool = False
    """True if the graph of a backward pass was itself made differentiable (`create_graph`)."""
    closure: bool = False  # True if an optimizer's step was given a closure
    inference: bool = False  # True if the step entered `torch.inference_mode`
    optimizers: list[Optimizer] = field(default_factory=list)  # The optimizers that stepped
    modules: list[nn.Module] = field(default_factory=list)
    """The modules with parameters that the step called and no other module did."""
    draws: bool = False  # True if the step drew random numbers of torch's outside of its modules
    numbers: list[str] = field(default_factory=list)
    """Names of the script's numbers that the call changed or added."""
    loses_gradient: str = ""
    """A name of the script's whose `.grad` torch.compile would set on another tensor."""
    autocast: bool = False  # True if the step called a module within an autocast of its own
    in_backward: bool = False  # True during a backward pass, where a checkpoint calls modules again
    changing: list[nn.Module] = field(default_factory=list)
    """The blocks that cannot be recomputed, which would call them twice a step: each call leaves
    something behind (BatchNorm's averages, a count), or runs a hook."""

    def why_not_whole(self) -> str:
        """Return why the step cannot be compiled as a whole, as a clause; empty if it can."""
        if self.closure:
            return "it gives its optimizer a closure"
        if self.inference:  # torch cannot trace a slice of a tensor from outside of it
            return "it enters torch.inference_mode (torch.no_grad could be compiled)"
        if self.backwards != 1:
            count = {0: "no backward pass", 2: "two backward passes"}
            return f"it runs {count.get(self.backwards, f'{self.backwards} backward passes')}"
        for module in self.modules:
            if recurrent := recurrent_in(module):
                return f"torch.compile does not take nn.{recurrent}"
        if self.draws:
            return (
                "it draws random numbers outside of its modules, which compiled code draws "
                "otherwise"
            )
        if self.numbers:
            return f"it changes a number that it keeps ({self.numbers[0]})"
        if name := self.loses_gradient:
            return f"it sets {name}.grad after an operator such as -= has updated {name}"
        return ""


def watch(
    step: Callable[..., object],
    arguments: tuple[object, ...],
    named: dict[str, object],
    recomputed: nn.Module | None = None,
) -> tuple[object, Seen]:
    """Run the step as written; return its result and what it did.

    `recomputed` is the model whose blocks a recipe recomputes, if it recomputes any.
    """
    seen = Seen(loses_gradient=loses_gradient(step))
    blocks = find_blocks(recomputed) if recomputed is not None else []
    kept, before = [kept_state(block) for block in blocks], numbers(step)
    with _backwards(seen), _optimizers(seen), _inference(seen), _modules(seen):
        result = step(*arguments, **named)
    after = numbers(step)
    seen.numbers = [name for name, value in after.items() if before.get(name) != value]
    seen.changing = [
        block
        for block, own in zip(blocks, kept, strict=True)
        # A hook of the block itself runs outside of it.
        if kept_state(block) != own
        or any(
            getattr(module, name)
            for module in block.modules()
            for name in HOOKS
            if module is not block
        )
    ]
    return result, seen


def recurrent_in(module: nn.Module) -> str:
    """Return the class of a recurrent layer within the module; empty if there is none."""
    for one in module.modules():
        if isinstance(one, nn.RNNBase):
            return type(one).__name__
    return ""


@contextmanager
def _backwards(seen: Seen) -> Iterator[None]:
    """Count the backward passes of this thread, by what `backward` and `autograd.grad` call."""
    mine = threading.get_ident()
    own = AUTOGRAD._engine_run_backward

    def run_backward(
        outputs: object,
        gradients: object,
        keep_graph: bool,
        create_graph: bool,
        *others: object,
        **named: object,
    ) -> Any:
        # torch.compile differentiates what it traces.
        traced = torch._guards.TracingContext.try_get() is not None
        if threading.get_ident() == mine and not seen.in_backward and not traced:
            seen.backwards += 1
            seen.twice |= create_graph
            seen.keeps_graph |= keep_graph
        outer, seen.in_backward = seen.in_backward, True
        try:
            return own(outputs, gradients, keep_graph, create_graph, *others, **named)
        finally:
            seen.in_backward = outer

    AUTOGRAD._engine_run_backward = run_backward
    try:
        yield
    finally:  # a watch over gradients may have ended meanwhile
        AUTOGRAD._engine_run_backward = own if _watching or own is not _run_backward else _own


@contextmanager
def _optimizers(seen: Seen) -> Iterator[None]:
    """Note each optimizer that steps, and whether it is given a closure."""

    def note(optimizer: Optimizer, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        seen.closure |= any(callable(one) for one in (*arguments[1:], *named.values()))
        if not any(one is optimizer for one in seen.optimizers):
            seen.optimizers.append(optimizer)

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _inference(seen: Seen) -> Iterator[None]:
    """Note whether this thread enters `torch.inference_mode`."""
    mine, real = threading.get_ident(), torch.inference_mode.__enter__

    def enter(self: torch.inference_mode) -> None:
        seen.inference |= threading.get_ident() == mine and self.mode
        real(self)

    torch.inference_mode.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.inference_mode.__enter__ = real  # type: ignore[method-assign]


@contextmanager
def _modules(seen: Seen) -> Iterator[None]:
    """Note each module that this thread calls from outside of all modules, and draws in between."""
    mine, real = threading.get_ident(), nn.Module.__call__
    last = _random_state()

    def look() -> None:
        nonlocal last
        if is_transformed():
            return  # states cannot be read there
        now = _random_state()
        seen.draws |= now != last and not seen.in_backward
        last = now

    def call(self: nn.Module, *arguments: object, **named: object) -> object:
        nonlocal last
        if threading.get_ident() != mine:
            return real(self, *arguments, **named)
        seen.autocast |= any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES))
        known = any(one is self for one in seen.modules)
        if not known and not seen.in_backward and next(self.parameters(), None) is not None:
            seen.modules.append(self)
        look()
        nn.Module.__call__ = real  # type: ignore[method-assign]
        try:
            return real(self, *arguments, **named)
        finally:
            if not is_transformed():
                last = _random_state()
            nn.Module.__call__ = call  # type: ignore[method-assign]

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
        look()
    finally:
        nn.Module.__call__ = real  # type: ignore[method-assign]


def _random_state() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return [one.numpy().tobytes() for one in states]


def kept_state(block: nn.Module) -> list[object]:
    """Return a block's state without its parameters, for comparison."""
    found: list[object] = []
    for module in block.modules():
        found += [(id(one), one._version) for one in module._buffers.values() if one is not None]
        for name, value in module.__dict__.items():
            if type(value) in (int, float):
                found.append((name, value))
            elif isinstance(value, list):
                found.append((name, len(value)))
    return found


# Watch how a script differentiates a model, in the step before the model is compiled.
#
# What torch.compile makes cannot be differentiated twice, and fails only in the script's second
# backward pass. So the first step of a model alone runs as written, and shows whether there is
# one.

MOST_BACKWARDS = 4
"""Backward passes that are watched if no optimizer steps, as where a script accumulates many."""
_watching: list[FirstGradients] = []
_own: Callable[..., Any] = AUTOGRAD._engine_run_backward


class FirstGradients:
    """The backward passes through a model until one of its optimizers steps."""

    def __init__(self, model: nn.Module) -> None:
        self.over = False
        self.twice = False  # True if a gradient of the model was made to be differentiated again
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
