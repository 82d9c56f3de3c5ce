"""State of a torch model whose values the harness sets."""

from __future__ import annotations

import ast
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError

DEEPEST: Final = 4  # Containers inside one another
MOST: Final = 4096  # Values to look at

SHOWN = 8
WEIGHTS_SEED: Final = 1
"""The seed under which both models are built; frozen weights are those that it draws."""
Form = tuple[tuple[int, ...], torch.dtype]  # The shape and dtype of a part of the state
Alias = tuple[int, Tensor, tuple[int, ...], tuple[int, ...], int]
"""The number of a part of the state, a view of it, and the view's shape, strides and offset."""


class FormError(KernelError):
    """The entry returned a result of the wrong form."""


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
        forms: Sequence[Form] | None = None,
        *,
        frozen: bool = False,
        drawn: Sequence[str] = (),
        alone: bool | None = None,
    ) -> None:
        """Bind a model. `attributes` are the state's plain attributes, set if the model has them.
        With `alone`, a call raises a FormError unless it returns a tensor by itself, or a tuple.

        With `forms`, the shape and dtype of each part of the state, the model is another that must
        only behave the same: see `own_names`. Without, raises a KernelError if a part has no place.
        """
        self.model = model
        self.unplaced: list[str] = []
        if forms is not None:
            position, left = own_names(model, state, forms, drawn)
            self.unplaced = [name for name in left if name not in attributes]
        else:
            position = _same_names(model, state, attributes)
        self._parameters, self._buffers = _places(model, position)
        kept = kept_tensors(model) if forms is not None else {}
        kept |= {
            name: one
            for name, one in model.state_dict(keep_vars=True).items()
            if forms is not None and name not in position  # a view of another shape
        }
        held = {_memory(own): at for own, at in _numbered(model, kept, position) if own.numel()}
        self._aliases: list[Alias] = [
            (held[_memory(one)], one, tuple(one.shape), one.stride(), int(one.storage_offset()))
            for one in kept.values()
            if _memory(one) in held
        ]
        self._attributes = [
            (position[name], owner, last)
            for name, owner, last in _plain_places(model)
            if name in position and _memory(getattr(owner, last)) not in held
        ]
        self.state_parts = len(state)
        self.alone, self._wanted = True, alone  # True if the last call returned a lone tensor
        self._frozen = frozen
        self._arguments = [
            None if literal is None else (ast.literal_eval(literal),) for literal in arguments
        ]

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        found = self.model(*self._set(given))
        self.alone = isinstance(found, Tensor)
        if self._wanted not in (None, self.alone):
            ways = ("a tuple or a list", "a tensor by itself")
            told = f"{ways[self.alone]}, and the reference's {ways[not self.alone]}"
            raise FormError(f"the model's result is {told}")
        return flatten(found)

    def in_other_mode(self, *given: Any) -> tuple[Tensor, ...]:
        """Call the model in evaluation mode if it is in training mode, and the reverse."""
        values, mode = self._set(given), self.model.training
        self.model.train(not mode)
        try:
            return flatten(self.model(*values))
        finally:
            self.model.train(mode)

    def _set(self, given: Sequence[Any]) -> list[Any]:
        """Set the state; return the model's own arguments."""
        tensors = given[:-1]  # the last argument holds a problem's scalars: a model has none
        for position, parameter in self._parameters:
            source = tensors[position].clone() if self._frozen else tensors[position]
            same = source.shape == parameter.shape
            parameter.data = source if same else source.reshape(parameter.shape)
        held: dict[int, Tensor] = {}
        for position, owner, name in self._buffers:
            held[position] = owner._buffers[name] = tensors[position].clone()
        for position, alias, shape, stride, offset in self._aliases:
            source = held.get(position, tensors[position])
            source = source.clone() if self._frozen else source
            alias.data = source.as_strided(shape, stride, source.storage_offset() + offset)
        if self._frozen:
            self._parameters, self._aliases = [], []
        for position, owner, name in self._attributes:
            setattr(owner, name, tensors[position].clone())
        rest = iter(tensors[self.state_parts :])
        return [next(rest) if one is None else one[0] for one in self._arguments]


def flatten(found: object) -> tuple[Tensor, ...]:
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


def _same_names(
    model: nn.Module, state: Sequence[str], attributes: Sequence[str]
) -> dict[str, int]:
    """Return the number of each part of a model's own state; a KernelError if it has another."""
    own = model.state_dict()
    missing = sorted(name for name in state if name not in own and name not in attributes)
    extra = sorted(name for name in own if name not in state)
    words = [
        f"{what} {', '.join(names[:SHOWN])}{' ...' if len(names) > SHOWN else ''}"
        for what, names in (("it lacks", missing), ("it adds", extra))
        if names
    ]
    if words:
        raise KernelError(
            f"the parameters and buffers are not those of the problem's model: {'; '.join(words)}"
        )
    return {name: index for index, name in enumerate(state)}


def own_names(
    model: nn.Module, state: Sequence[str], forms: Sequence[Form], drawn: Sequence[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """Return the number of the part of a state that each of a model's names is, and the rest.

    KernelBench builds both models under one seed, so they are matched by what that drew: `drawn`
    holds the digest of each part's first values. A part is the tensor that alone has its digest;
    else the one of its name; else the first that is left over with its digest, or with its shape
    and dtype (`forms`). A further name of a tensor is the same part. Whatever is left over keeps
    its values, and the answers tell whether that is right. Parts without a tensor are returned too.
    """
    own: dict[str, Tensor] = {
        **model.state_dict(keep_vars=True),
        **dict(model.named_buffers(remove_duplicate=False)),
        **kept_tensors(model),
    }
    first: dict[object, str] = {}
    for name, tensor in own.items():
        first.setdefault(_storage(tensor), name)
    digests = {name: digest(own[name]) for name in first.values()} if drawn else {}
    told = dict(enumerate(drawn))
    alone = {one for one in drawn if [*drawn, *digests.values()].count(one) == 2}
    position: dict[str, int] = {}
    left = dict(enumerate(state))

    def match(fits: Callable[[int, str], bool], *, reshaped: bool = False) -> None:
        for index in list(left):
            free = (
                name
                for name in first.values()
                if name not in position
                and (
                    _form(own[name]) == forms[index]
                    or (reshaped and isinstance(own[name], nn.Parameter))
                )
                and fits(index, name)
            )
            if (taken := next(free, None)) is not None:
                position[taken] = index
                del left[index]

    match(
        lambda index, name: told.get(index) in alone and digests[name] == told[index],
        reshaped=True,  # its values are in the same order
    )
    aliases = {name: first[_storage(tensor)] for name, tensor in own.items()}
    match(lambda index, name: aliases.get(state[index]) == name)
    match(lambda index, name: bool(digests) and digests[name] == told[index])
    plain = kept_tensors(model)
    match(lambda _, name: name not in plain)
    for name, tensor in own.items():
        if first[_storage(tensor)] in position:
            position[name] = position[first[_storage(tensor)]]
    return position, list(left.values())


def digest(tensor: Tensor) -> str:
    """Return the first 16 hex digits of a hash of a tensor's values."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()


def _form(tensor: Tensor) -> Form:
    return tuple(tensor.shape), tensor.dtype


def _storage(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return what two names of one tensor have in common; tensors without memory share nothing."""
    return tensor.data_ptr() or id(tensor), tuple(tensor.shape), tensor.stride()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else -1


def _numbered(
    model: nn.Module, kept: Mapping[str, Tensor], position: Mapping[str, int]
) -> list[tuple[Tensor, int]]:
    """Return the parameters and persistent buffers that are a part of the state, and its number."""
    hidden = {name: one for name, one in kept.items() if isinstance(one, nn.Parameter)}
    found = {**hidden, **model.state_dict(keep_vars=True)}
    return [(found[name], at) for name, at in position.items() if name in found]


def kept_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors by where they are kept, each once; none of the model's own state.

    They lie in attributes of the model and its submodules: as they are, or in lists, tuples, dicts,
    objects, partial functions and closures.
    """
    state = {id(one) for one in (*model.parameters(), *model.buffers())}
    found: dict[str, Tensor] = {}
    met = {id(one) for one in model.modules()}
    for prefix, owner in model.named_modules():
        own = {id(owner._parameters), id(owner._buffers), id(owner._modules)}
        for name, value in list(vars(owner).items()):
            if id(value) in own or name.endswith("_hooks"):
                continue
            path = f"{prefix}.{name}" if prefix else name
            for where, tensor in _inside(value, path, DEEPEST, met):
                if id(tensor) not in state and len(found) < MOST:
                    found[where] = tensor
    return found


def _inside(value: object, path: str, depth: int, met: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, (str, bytes, int, float, type, types.ModuleType, nn.Module)):
        return
    if id(value) in met or len(met) > MOST:
        return
    met.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
        return
    if depth:
        for name, member in _members(value):
            yield from _inside(member, f"{path}.{name}", depth - 1, met)


def _members(value: object) -> list[tuple[str, object]]:
    """Return what a container, a function or an object of plain attributes holds, with names."""
    if isinstance(value, (list, tuple)):
        return [(str(at), one) for at, one in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key)[:40], one) for key, one in list(value.items())]
    if isinstance(value, functools.partial):
        return [("func", value.func), *_members(value.args), *_members(value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(name, _held(cell)) for name, cell in cells]
    module = type(value).__module__.partition(".")[0]
    if module in ("torch", "builtins", "numpy", "collections"):
        return []
    return list(getattr(value, "__dict__", {}).items())


def _held(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
