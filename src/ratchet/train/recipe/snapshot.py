"""Keep the state that a step reads and writes, and put it back.

Kept are the model, the optimizers, random states, the arguments of the call, and what the step
reaches by name: numbers, words and containers of them, tensors, generators, objects with
`state_dict` and `load_state_dict`, and plain objects of the script. Iterators and open files cannot
be put back.
"""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ratchet.train.recipe.script_state import attributes, variables

RandomStates = tuple[tuple[bytes, ...], tuple[Any, ...], tuple[Any, ...]]
"""States of torch's generators (the CPU's first), numpy's and Python's."""
OptimizerState = tuple[dict[Tensor, Any], list[dict[str, object]]]
"""The state of each parameter, and the settings of each group."""
OTHER_SEED = 20_260_101
"""Seed of a run that draws other random numbers."""


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
        self.refused = ""
        """The parts that cannot be put back, as a clause; empty if everything can."""
        self.random_states = of_random_states()
        self._undo: list[Callable[[], None]] = []
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
            self._undo.append(partial(_put_generator, value, value.get_state()))
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
            self._undo.append(partial(_put_list, value, list(value)))
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


def _put_generator(place: torch.Generator, kept: Tensor) -> None:
    place.set_state(kept)


def _refill(place: dict[Any, Any] | set[Any], kept: Any) -> None:
    place.clear()
    place.update(kept)


def _put_list(place: list[object] | deque[object], kept: list[object]) -> None:
    place.clear()
    place.extend(kept)
