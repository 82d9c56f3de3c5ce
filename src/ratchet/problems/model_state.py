"""State of a torch model whose values the harness sets."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError

SHOWN = 8


class StatefulCall:
    """A model as a function of its state and its tensor inputs; returns a tuple of tensors.

    Parameters point at the given memory. Buffers, which a model in training mode changes, are
    copied, and so are tensors that are plain attributes. Both arms of a trial do this in the same
    way, inside the clock.
    """

    def __init__(
        self,
        model: nn.Module,
        state: Sequence[str],
        arguments: Sequence[str | None],
        attributes: Sequence[str] = (),
    ) -> None:
        """Bind a model. `attributes` are the state's plain attributes, set if the model has them.

        Raises a KernelError if the model's parameters and buffers have other names.
        """
        self.model = model
        _check_names(model, state, attributes)
        self._parameters, self._buffers = _places(model, state)
        position = {name: index for index, name in enumerate(state)}
        self._attributes = [
            (position[name], owner, last)
            for name, owner, last in _plain_places(model)
            if name in position
        ]
        self._count = len(state)
        self._arguments = [
            None if literal is None else (ast.literal_eval(literal),) for literal in arguments
        ]

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        tensors = given[:-1]  # the last argument holds a problem's scalars: a model has none
        for position, parameter in self._parameters:
            parameter.data = tensors[position]
        for position, owner, name in self._buffers:
            owner._buffers[name] = tensors[position].clone()
        for position, owner, name in self._attributes:
            setattr(owner, name, tensors[position].clone())
        rest = iter(tensors[self._count :])
        values = [next(rest) if one is None else one[0] for one in self._arguments]
        return flatten(self.model(*values))


def flatten(found: Any) -> tuple[Tensor, ...]:
    """Return a model's result as a tuple of tensors; KernelError if it is something else."""
    if isinstance(found, Tensor):
        return (found,)
    if isinstance(found, (tuple, list)):
        return tuple(tensor for one in found for tensor in flatten(one))
    raise KernelError(
        f"a model returns tensors, alone or in tuples and lists, not {type(found).__name__}: "
        "have its forward return the tensors"
    )


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors outside a model's state_dict: plain attributes of it and its submodules,
    and non-persistent buffers."""
    return {name: getattr(owner, last) for name, owner, last in _plain_places(model)}


def widen_plain(model: nn.Module) -> None:
    """Make a model's plain real tensors float64; `model.double()` does not."""
    for _, owner, name in _plain_places(model):
        value = getattr(owner, name)
        if value.is_floating_point():
            setattr(owner, name, value.double())


def _plain_places(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    return [
        (f"{prefix}.{name}" if prefix else name, owner, name)
        for prefix, owner in model.named_modules()
        for name, value in (
            *vars(owner).items(),
            *((one, owner._buffers[one]) for one in sorted(owner._non_persistent_buffers_set)),
        )
        if isinstance(value, Tensor)
    ]


def _places(
    model: nn.Module, state: Sequence[str]
) -> tuple[list[tuple[int, nn.Parameter]], list[tuple[int, nn.Module, str]]]:
    position = {name: index for index, name in enumerate(state)}
    parameters: list[tuple[int, nn.Parameter]] = []
    buffers: list[tuple[int, nn.Module, str]] = []
    for prefix, owner in model.named_modules():
        for name in (*owner._parameters, *owner._buffers):
            index = position.get(f"{prefix}.{name}" if prefix else name)
            if index is None:
                continue
            parameter = owner._parameters.get(name)
            if parameter is not None:
                parameters.append((index, parameter.requires_grad_(False)))
            else:
                buffers.append((index, owner, name))
    return parameters, buffers


def _check_names(model: nn.Module, state: Sequence[str], attributes: Sequence[str]) -> None:
    own = set(model.state_dict())
    missing = sorted(set(state) - set(attributes) - own)
    extra = sorted(own - set(state))
    if missing or extra:
        words = [
            f"{what} {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
            for what, names in (("it lacks", missing), ("it adds", extra))
            if names
        ]
        raise KernelError(
            f"the parameters and buffers are not those of the problem's model: {'; '.join(words)}"
        )


def check_shapes(model: nn.Module, wanted: Sequence[tuple[str, Sequence[int], str]]) -> None:
    """Raise a KernelError if a part of the state has another shape or dtype."""
    found = {**plain_tensors(model), **model.state_dict()}
    for name, shape, dtype in wanted:
        own = found.get(name)
        if own is None:
            continue  # a plain attribute: a model need not have it
        if tuple(own.shape) != tuple(shape) or own.dtype != getattr(torch, dtype):
            raise KernelError(
                f"{name} is {tuple(own.shape)} {own.dtype}, and the problem's {tuple(shape)} "
                f"torch.{dtype}: give it the same shape and dtype"
            )
