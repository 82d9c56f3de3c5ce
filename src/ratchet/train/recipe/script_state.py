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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

DEEPEST = 3
"""Levels of containers and objects that are looked into for numbers."""
MOST_ITEMS = 64
"""Longer containers hold data and are not looked into for numbers."""
CALLED = (FunctionType, MethodType, functools.partial)
"""Functions of the script that a step may call."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A name of the script that a step reaches."""

    name: str
    read: Callable[[], object]
    write: Callable[[object], None]


def variables(step: Callable[..., object]) -> list[Variable]:
    """Return the variables that a step reaches, each once."""
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
        yield Variable(name, functools.partial(_of_cell, cell), functools.partial(_to_cell, cell))


def _of_cell(cell: CellType) -> object:
    return cell.cell_contents


def _to_cell(cell: CellType, value: object) -> None:
    cell.cell_contents = value


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
