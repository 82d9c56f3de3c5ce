"""State of a torch model whose values the harness sets."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError

SHOWN = 8
Form = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a part of the state."""


class StatefulCall:
    """A model as a function of its state and its tensor inputs; returns a tuple of tensors.

    Parameters point at the given memory. Buffers, which a model in training mode changes, are
    copied, and so are tensors that are plain attributes. Both arms of a trial do this in the same
    way, inside the clock. Parameters that are frozen are copied at the first call, and then stay.
    """

    def __init__(
        self,
        model: nn.Module,
        state: Sequence[str],
        arguments: Sequence[str | None],
        attributes: Sequence[str] = (),
        forms: Sequence[Form] = (),
        *,
        frozen: bool = False,
    ) -> None:
        """Bind a model. `attributes` are the state's plain attributes, set if the model has them.

        With `forms`, the shape and dtype of each part of the state, the model's own names may be
        others: see `own_names`. Raises a KernelError if a part has no place in the model.
        """
        self.model = model
        position = own_names(model, state, attributes, forms)
        self._parameters, self._buffers = _places(model, position)
        self._attributes = [
            (position[name], owner, last)
            for name, owner, last in _plain_places(model)
            if name in position
        ]
        self._count = len(state)
        self._frozen = frozen
        self._arguments = [
            None if literal is None else (ast.literal_eval(literal),) for literal in arguments
        ]

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        tensors = given[:-1]  # the last argument holds a problem's scalars: a model has none
        for position, parameter in self._parameters:
            parameter.data = tensors[position].clone() if self._frozen else tensors[position]
        if self._frozen:
            self._parameters = []
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


def move_plain(model: nn.Module, device: str) -> None:
    """Move a model's plain tensors; `model.to(device)` does not."""
    for _, owner, name in _plain_places(model):
        setattr(owner, name, getattr(owner, name).to(device))


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
    model: nn.Module, position: Mapping[str, int]
) -> tuple[list[tuple[int, nn.Parameter]], list[tuple[int, nn.Module, str]]]:
    parameters: list[tuple[int, nn.Parameter]] = []
    buffers: list[tuple[int, nn.Module, str]] = []
    for prefix, owner in model.named_modules():
        # Not `_parameters` and `_buffers`: a scripted module's cannot be iterated over.
        own = dict(owner.named_parameters(recurse=False, remove_duplicate=False))
        held = dict(owner.named_buffers(recurse=False, remove_duplicate=False))
        for name in (*own, *held):
            index = position.get(f"{prefix}.{name}" if prefix else name)
            if index is None:
                continue
            if name in own:
                parameters.append((index, own[name].requires_grad_(False)))
            else:
                buffers.append((index, owner, name))
    return parameters, buffers


def own_names(
    model: nn.Module, state: Sequence[str], attributes: Sequence[str], forms: Sequence[Form]
) -> dict[str, int]:
    """Return the model's own name of each part of the state, with the part's number.

    A part without a name in the model takes the first parameter or buffer that is left over and has
    its shape and dtype: KernelBench builds both models under one seed, so it matches them in order
    too. A second name of one tensor is no part, and buffers that are left over keep their values.
    Raises a KernelError for a part without a place, and for a parameter that is left over.
    """
    position = {name: index for index, name in enumerate(state)}
    own = model.state_dict(keep_vars=True)
    named = {id(own[name]) for name in state if name in own}
    extra = [
        name for name, tensor in own.items() if name not in position and id(tensor) not in named
    ]
    missing = [name for name in state if name not in own and name not in attributes]
    for name in [*missing] if forms else []:
        wanted = forms[position[name]]
        fitting = (one for one in extra if (tuple(own[one].shape), own[one].dtype) == wanted)
        if (taken := next(fitting, None)) is not None:
            position[taken] = position[name]
            missing.remove(name)
            extra = [one for one in extra if own[one] is not own[taken]]
    if forms:
        extra = [name for name in extra if isinstance(own[name], nn.Parameter)]
    if missing or extra:
        words = [
            f"{what} {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
            for what, names in (("it lacks", sorted(missing)), ("it adds", sorted(extra)))
            if names
        ]
        raise KernelError(
            f"the parameters and buffers are not those of the problem's model: {'; '.join(words)}"
        )
    return position


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
