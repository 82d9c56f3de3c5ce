"""State that a step reads and writes besides its arguments.

A step is a function of a script. It reaches the cells of its closure, the globals that it names,
the object that it is a method of, and the same for functions of its file that it calls.
"""

from __future__ import annotations

import argparse
import dataclasses
import dis
import functools
import inspect
import io
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

DEEPEST = 3  # Levels of containers and objects that are looked into for numbers
MOST_ITEMS = 64  # Longer containers hold data and are not looked into for numbers
CALLED = (FunctionType, MethodType, functools.partial)
"""Functions of the script that a step may call."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A name of the script that a step reaches."""

    name: str
    read: Callable[[], object]
    write: Callable[[object], None]


def variables(step: Callable[..., object]) -> list[Variable]:
    found: dict[str, Variable] = {}
    for function, own in _reached(step):
        found.update((one.name, one) for one in own)
        for one in _outside(function):
            if not isinstance(one.read(), CALLED):
                found.setdefault(one.name, one)
    return list(found.values())


def loses_gradient(step: Callable[..., object]) -> str:
    """Return a name whose `.grad` the step sets after an operator such as `-=` has updated it.

    torch.compile (2.13) takes the name for a new tensor then, so that `p -= x; p.grad = None`
    leaves the parameter its gradient. Empty if there is none.
    """
    codes = (code for one, _ in _reached(step) if one is not None for code in _codes(one.__code__))
    return next(filter(None, map(_set_after_update, codes)), "")


def _set_after_update(code: CodeType) -> str:
    updated: set[str] = set()
    in_place, name = False, ""
    for one in dis.get_instructions(code):
        # From Python 3.13 on, one instruction may load or store two names; a constant may be ().
        names: tuple[object, ...] = (one.argval,)
        if isinstance(one.argval, tuple) and "FAST" in one.opname:
            names = one.argval
        if one.opname.startswith("STORE_") and in_place:
            updated.add(str(names[0]))
        if one.opname == "STORE_ATTR" and names == ("grad",) and name in updated:
            return name
        in_place = one.opname == "BINARY_OP" and one.argrepr.endswith("=")
        name = str(names[-1]) if one.opname.startswith("LOAD_") else ""
    return ""


def _reached(step: Callable[..., object]) -> Iterator[tuple[FunctionType | None, list[Variable]]]:
    """Yield the step's function and those of its file that it calls, with what is bound to each."""
    waiting: list[object] = [step]
    seen: set[int] = set()
    files: set[int] = set()
    while waiting:
        called = waiting.pop()
        if id(called) in seen:
            continue
        seen.add(id(called))
        function, own = _function_of(called)
        yield function, own
        if function is None:
            continue
        files.add(id(function.__globals__))
        for one in _outside(function):
            value = one.read()
            inner = _function_of(value)[0] if isinstance(value, CALLED) else None
            if inner is not None and id(inner.__globals__) in files:
                waiting.append(value)


def _outside(function: FunctionType | None) -> list[Variable]:
    return [] if function is None else [*_cells(function), *_globals(function)]


def numbers(step: Callable[..., object]) -> dict[str, float]:
    """Return the numbers that a step reaches by name, such as counters; flags are none."""
    found: dict[str, float] = {}
    for variable in variables(step):
        found.update(_numbers(variable.name, variable.read(), DEEPEST))
    return found


def attributes(value: object) -> dict[str, object] | None:
    """Return the attributes of a plain object of a script; None for everything else."""
    plain = isinstance(value, SimpleNamespace | argparse.Namespace)
    if plain or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        found = getattr(value, "__dict__", None)
        return found if isinstance(found, dict) else None
    own = type(value).__module__
    library = own.partition(".")[0] in LIBRARIES
    found = getattr(value, "__dict__", None)
    if library or isinstance(value, type) or callable(value) or not isinstance(found, dict):
        return None
    return found


LIBRARIES = frozenset(
    {"builtins", "torch", "numpy", "logging", "threading", "_io", "io", "pathlib", "re", "random"}
)
"""Packages whose objects are no plain objects of a script."""


def _function_of(called: object) -> tuple[FunctionType | None, list[Variable]]:
    """Return the function behind a callable, and the objects bound to it as variables."""
    bound: list[Variable] = []
    while not isinstance(called, FunctionType):
        if isinstance(called, functools.partial):
            bound += [_constant(name, one) for name, one in called.keywords.items()]
            bound += [_constant(f"argument {at}", one) for at, one in enumerate(called.args)]
            called = called.func
        elif isinstance(called, MethodType):
            bound.append(_constant("self", called.__self__))
            called = called.__func__
        elif isinstance(
            call := inspect.getattr_static(type(called), "__call__", None), FunctionType
        ):
            bound.append(_constant("self", called))
            called = call
        else:
            return None, bound
    return called, bound


def _constant(name: str, value: object) -> Variable:
    return Variable(name, lambda: value, lambda _: None)


def _cells(function: FunctionType) -> Iterator[Variable]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018  # empty until the variable is set
        except ValueError:
            continue
        read = functools.partial(getattr, cell, "cell_contents")
        yield Variable(name, read, functools.partial(setattr, cell, "cell_contents"))


def _globals(function: FunctionType) -> Iterator[Variable]:
    held = function.__globals__
    names = (name for code in _codes(function.__code__) for name in code.co_names)
    for name in dict.fromkeys(names):
        if name in held:
            yield Variable(
                name,
                functools.partial(held.__getitem__, name),
                functools.partial(held.__setitem__, name),
            )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of its inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _numbers(name: str, value: object, deepest: int) -> Iterator[tuple[str, float]]:
    if type(value) in (int, float):
        yield name, value  # type: ignore[misc]
        return
    inside: Mapping[Any, object] | None = None
    if isinstance(value, dict):
        inside = value
    elif isinstance(value, list | tuple | deque):
        inside = dict(enumerate(value)) if len(value) <= MOST_ITEMS else None
    elif isinstance(value, LRScheduler):
        inside = {"last_epoch": value.last_epoch}
    else:
        inside = attributes(value)
    if inside is None or deepest == 0 or len(inside) > MOST_ITEMS:
        return
    for key, held in list(inside.items()):
        yield from _numbers(f"{name}.{key}", held, deepest - 1)


# Keep the state that a step reads and writes, and put it back.
#
# Kept are the model, the optimizers, random states, the arguments of the call, and what the step
# reaches by name: numbers, words and containers of them, tensors, generators, objects with
# `state_dict` and `load_state_dict`, and plain objects of the script. Iterators and open files
# cannot be put back.

RandomStates = tuple[tuple[bytes, ...], tuple[Any, ...], tuple[Any, ...]]
"""States of torch's generators (the CPU's first), numpy's and Python's."""
OptimizerState = tuple[dict[Tensor, Any], list[dict[str, object]]]
"""The state of each parameter, and the settings of each group."""
OTHER_SEED = 20_260_101  # Seed of a run that draws other random numbers


class Snapshot:
    """The state around a step, at one moment."""

    def __init__(
        self,
        step: Callable[..., object],
        model: nn.Module,
        optimizers: tuple[Optimizer, ...],
        given: tuple[object, ...] = (),
    ) -> None:
        """Keep the state; `given` are the arguments of the call."""
        self.refused = ""  # The parts that cannot be put back, as a clause; empty if everything can
        self.random_states = of_random_states()
        self._undo: list[Callable[[], object]] = []
        self._known: set[int] = set()
        self._keep("model", model)
        for optimizer in optimizers:
            self._keep("optimizer", optimizer)
        self._keep("argument", given)
        for variable in variables(step):
            value = variable.read()
            self._undo.append(partial(variable.write, value))
            self._keep(variable.name, value)

    def restore(self) -> None:
        """Put everything back in place."""
        with torch.no_grad():
            for undo in self._undo:
                undo()
        set_random_states(self.random_states)

    def _keep(self, name: str, value: object) -> None:
        if id(value) in self._known:
            return
        self._known.add(id(value))
        if isinstance(value, Tensor):
            self._undo.append(partial(_put_tensor, value, value.detach().clone()))
        elif isinstance(value, nn.Module):
            self._keep_module(value)
        elif isinstance(value, Optimizer):
            self._undo.append(partial(_put_optimizer, value, _state_of(value)))
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._undo.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            self._undo.append(partial(setattr, bits, "state", deepcopy(bits.state)))
        elif isinstance(value, LRScheduler):
            kept = dict(vars(value))  # its state_dict leaves out what its optimizer knows
            self._undo.append(partial(_refill, value.__dict__, kept))
        elif isinstance(value, dict):
            self._undo.append(partial(_refill, value, dict(value)))
            self._keep_inside(name, value.items())
        elif isinstance(value, list | deque):
            self._undo += [value.clear, partial(value.extend, list(value))]
            self._keep_inside(name, enumerate(value))
        elif isinstance(value, tuple):
            self._keep_inside(name, enumerate(value))
        elif isinstance(value, set):
            self._undo.append(partial(_refill, value, set(value)))
        elif hasattr(value, "load_state_dict") and hasattr(value, "state_dict"):
            self._undo.append(partial(value.load_state_dict, deepcopy(value.state_dict())))
        elif isinstance(value, Iterator | io.IOBase):
            self.refused = (
                self.refused
                or f"{name} is of type {type(value).__name__}, whose place cannot be put back"
            )
        elif (held := attributes(value)) is not None:
            self._undo.append(partial(_refill, held, dict(held)))
            self._keep_inside(name, held.items())

    def _keep_inside(self, name: str, items: Iterable[tuple[object, object]]) -> None:
        for key, value in list(items):
            self._keep(f"{name}.{key}", value)

    def _keep_module(self, module: nn.Module) -> None:
        for one in module.modules():
            self._known.add(id(one))
            for held in (one._parameters, one._buffers):
                for tensor in held.values():
                    if tensor is not None and id(tensor) not in self._known:
                        self._known.add(id(tensor))
                        grad = None if tensor.grad is None else tensor.grad.detach().clone()
                        kept = tensor.detach().clone()
                        self._undo.append(partial(_put_parameter, tensor, kept, grad))
            plain = {
                name: value
                for name, value in vars(one).items()
                if isinstance(value, int | float | str | None)
            }
            self._undo.append(partial(one.__dict__.update, plain))


def of_random_states() -> RandomStates:
    """Return the states of torch's, numpy's and Python's default generators."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    states = [one.numpy().tobytes() for one in (torch.get_rng_state(), *devices)]
    numpy_state = np.random.get_state(legacy=True)
    parts = tuple(one.tobytes() if isinstance(one, np.ndarray) else one for one in numpy_state)
    return (tuple(states), parts, random.getstate())


def set_random_states(states: RandomStates) -> None:
    """Put back what `of_random_states` returned."""
    own, numpy_state, python_state = states
    first, *devices = (torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in own)
    torch.set_rng_state(first)
    if devices:
        torch.cuda.set_rng_state_all(devices)
    name, keys, *rest = numpy_state
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))
    random.setstate(python_state)


def set_seeds() -> None:
    """Seed the default generators with another seed than the script's."""
    torch.manual_seed(OTHER_SEED)
    np.random.seed(OTHER_SEED)
    random.seed(OTHER_SEED)


def _state_of(optimizer: Optimizer) -> OptimizerState:
    states = {
        parameter: {key: _copied(value) for key, value in state.items()}
        if isinstance(state, dict)
        else deepcopy(state)
        for parameter, state in optimizer.state.items()
    }
    groups = [
        {k: _copied(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups
    ]
    return states, groups


def _copied(value: object) -> object:
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def _put_optimizer(optimizer: Optimizer, kept: OptimizerState) -> None:
    """Put the state back; tensors that are there keep their place."""
    states, groups = kept
    for parameter in [one for one in optimizer.state if one not in states]:
        del optimizer.state[parameter]
    for parameter, state in states.items():
        held = optimizer.state[parameter]
        if not isinstance(state, dict):
            optimizer.state[parameter] = deepcopy(state)
            continue
        for key in [one for one in held if one not in state]:
            del held[key]
        for key, value in state.items():
            place = held.get(key)
            if isinstance(value, Tensor) and isinstance(place, Tensor):
                _put_tensor(place, value)
            else:
                held[key] = _copied(value)
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: _copied(value) for key, value in settings.items()})


def _put_tensor(place: Tensor, kept: Tensor) -> None:
    if place.shape == kept.shape:
        place.detach().copy_(kept)


def _put_parameter(place: Tensor, kept: Tensor, grad: Tensor | None) -> None:
    _put_tensor(place, kept)
    place.grad = None if grad is None else grad.clone()


def _refill(place: dict[Any, Any] | set[Any], kept: Any) -> None:
    place.clear()
    place.update(kept)


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
        own = [one for module in modules for one in (*module.parameters(), *module.buffers())]
        held = list({id(one): one for one in (*own, *_of_optimizers(optimizers))}.values())
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


def _of_optimizers(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
        for state in optimizer.state.values():
            if isinstance(state, dict):
                yield from (value for value in state.values() if isinstance(value, Tensor))


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
