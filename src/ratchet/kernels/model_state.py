"""The state of a torch model whose values the harness sets: names, places, one call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.errors import KernelError

SHOWN = 8


class StatefulCall:
    """A model as a function of its state and its tensor inputs; returns a tuple of tensors.

    Parameters are pointed at the given memory. Buffers, which a model in training mode changes,
    are copied. Both arms of a trial do this in the same way, inside the clock.
    """

    def __init__(
        self, model: nn.Module, state: Sequence[str], arguments: Sequence[str | None]
    ) -> None:
        """Raises KernelError where the model's parameters and buffers have other names."""
        self.model = model
        _check_names(model, state)
        self._parameters, self._buffers = _places(model, state)
        self._count = len(state)
        self._arguments = [
            None if literal is None else (ast.literal_eval(literal),) for literal in arguments
        ]

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        tensors = given[:-1]  # the last are a problem's scalars: a model has none
        for position, parameter in self._parameters:
            parameter.data = tensors[position]
        for position, owner, name in self._buffers:
            owner._buffers[name] = tensors[position].clone()
        rest = iter(tensors[self._count :])
        values = [next(rest) if one is None else one[0] for one in self._arguments]
        return flatten(self.model(*values))


def flatten(found: Any) -> tuple[Tensor, ...]:
    """What a model returns as a tuple of tensors; KernelError where it is something else."""
    if isinstance(found, Tensor):
        return (found,)
    if isinstance(found, (tuple, list)):
        return tuple(tensor for one in found for tensor in flatten(one))
    raise KernelError(f"a model returns tensors, not {type(found).__name__}")


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


def _check_names(model: nn.Module, state: Sequence[str]) -> None:
    own = set(model.state_dict())
    missing, extra = sorted(set(state) - own), sorted(own - set(state))
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
    """KernelError where a parameter or buffer has another shape or dtype: name, shape, dtype."""
    found = model.state_dict()
    for name, shape, dtype in wanted:
        own = found[name]
        if tuple(own.shape) != tuple(shape) or own.dtype != getattr(torch, dtype):
            raise KernelError(
                f"{name} is {tuple(own.shape)} {own.dtype}, and the problem's {tuple(shape)} "
                f"torch.{dtype}: give it the same form"
            )
