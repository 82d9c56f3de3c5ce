"""State of a torch model whose values the harness sets."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError

SHOWN = 8
Form = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a part of the state."""
Alias = tuple[int, Callable[[Tensor], None], tuple[int, ...], tuple[int, ...], int]
"""The number of a part of the state, what sets a view of it, and the view's shape, strides and
offset."""


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

        With `forms`, the shape and dtype of each part of the state, the model is another that must
        only behave the same: see `own_names`. Without, raises a KernelError if a part has no place.
        """
        self.model = model
        position, self.unplaced = own_names(model, state, attributes, forms)
        self._parameters, self._buffers = _places(model, position)
        self._aliases = _aliases(model, position) if forms else []
        self._attributes = [
            (position[name], owner, last)
            for name, owner, last in _plain_places(model)
            if name in position
            and not (forms and _form(getattr(owner, last)) != forms[position[name]])
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
        held: dict[int, Tensor] = {}
        for position, owner, name in self._buffers:
            held[position] = owner._buffers[name] = tensors[position].clone()
        for position, put, shape, stride, offset in self._aliases:
            source = held.get(position, tensors[position])
            put((source.clone() if self._frozen else source).as_strided(shape, stride, offset))
        if self._frozen:
            self._parameters, self._aliases = [], []
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
) -> tuple[dict[str, int], list[str]]:
    """Return the model's own name of each part of the state, with the part's number, and the rest.

    With `forms`, a part without its name, shape and dtype in the model takes the first parameter or
    buffer that is left over and has its shape and dtype: KernelBench builds both models under one
    seed, so it matches them in order too. A further name of a tensor is the same part. Whatever is
    left over keeps its values, and the answers tell whether that is right; the names of parts
    without a place are returned too. Without `forms` each of both is a KernelError.
    """
    own = model.state_dict(keep_vars=True)
    position = {
        name: index
        for index, name in enumerate(state)
        if name not in own or not forms or _form(own[name]) == forms[index]
    }
    named = {_storage(own[name]) for name in state if name in own and name in position}
    extra = [
        name
        for name, tensor in own.items()
        if name not in position and not (tensor.numel() and _storage(tensor) in named)
    ]
    missing = [
        name
        for name in state
        if name not in attributes and (name not in own or name not in position)
    ]
    if forms:
        _match_in_order(own, position, missing, extra, dict(zip(state, forms, strict=True)))
        by_storage = {_storage(own[name]): at for name, at in position.items() if name in own}
        for name, tensor in own.items():
            if name not in position and tensor.numel() and _storage(tensor) in by_storage:
                position[name] = by_storage[_storage(tensor)]
        return position, missing
    if missing or extra:
        words = [
            f"{what} {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
            for what, names in (("it lacks", sorted(missing)), ("it adds", sorted(extra)))
            if names
        ]
        raise KernelError(
            f"the parameters and buffers are not those of the problem's model: {'; '.join(words)}"
        )
    return position, []


def _match_in_order(
    own: Mapping[str, Tensor],
    position: dict[str, int],
    missing: list[str],
    extra: list[str],
    forms: Mapping[str, Form],
) -> None:
    """Give each missing part the first tensor that is left over and has its form."""
    numbers = {name: index for index, name in enumerate(forms)}
    for name in list(missing):
        taken = next((one for one in extra if _form(own[one]) == forms[name]), None)
        if taken is not None:
            position[taken] = numbers[name]
            missing.remove(name)
            extra[:] = [one for one in extra if _storage(own[one]) != _storage(own[taken])]


def _form(tensor: Tensor) -> Form:
    return tuple(tensor.shape), tensor.dtype


def _storage(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return what two names of one tensor have in common; tensors without memory share nothing."""
    return tensor.data_ptr() or id(tensor), tuple(tensor.shape), tensor.stride()


def _aliases(model: nn.Module, position: Mapping[str, int]) -> list[Alias]:
    """Return the views of a model's state that it keeps as plain tensors, alone or in a list.

    Such a view (`self.w = self.fc.weight.t()`) follows the weight where that changes in place.
    """
    own = model.state_dict(keep_vars=True)
    holders = {
        tensor.untyped_storage().data_ptr(): position[name]
        for name, tensor in own.items()
        if name in position and tensor.numel()
    }
    found: list[Alias] = []
    for owner in model.modules():
        for name, value in list(vars(owner).items()):
            members: list[tuple[Callable[[Tensor], None], Any]] = [
                (functools.partial(setattr, owner, name), value)
            ]
            if isinstance(value, list):
                members = [
                    (functools.partial(value.__setitem__, at), one) for at, one in enumerate(value)
                ]
            elif isinstance(value, dict) and not name.startswith("_"):
                members = [
                    (functools.partial(value.__setitem__, key), one) for key, one in value.items()
                ]
            for put, one in members:
                if not isinstance(one, Tensor) or isinstance(one, nn.Parameter) or not one.numel():
                    continue
                at = holders.get(one.untyped_storage().data_ptr())
                if at is not None:
                    found.append(
                        (at, put, tuple(one.shape), one.stride(), int(one.storage_offset()))
                    )
    return found
