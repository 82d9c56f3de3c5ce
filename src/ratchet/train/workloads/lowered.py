"""bf16 weights without bf16 parameters: a forward pass reads fp32 weights as bf16.

Parameters stay as the script made them, in fp32, so everything else that reads or writes them
(checkpoints, clamps, averages, evaluation) sees what is trained. Gradients arrive and add up in
fp32. This is mixed precision with fp32 master weights (Micikevicius et al. 2018, section 3.1),
whose bf16 copies live for one forward and backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ratchet.train.workloads.config import AUTOCAST

LOOKUPS = frozenset({F.embedding, F.embedding_bag})
"""Functions that read a few rows of their weight: the result is cast, not the table."""
_PRODUCTS = ["matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "add", "cat", "stack"]
_LAYERS = ["linear", "bilinear", "multi_head_attention_forward", "conv1d", "conv2d", "conv3d"]
_TURNED = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
_METHODS = ["matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "add", "__add__", "__radd__"]
_VIEWS = ["expand", "expand_as", "t", "transpose", "permute", "view", "reshape", "unsqueeze"]
READERS = frozenset(
    [getattr(F, name) for name in (*_LAYERS, *_TURNED)]
    + [getattr(torch, name) for name in _PRODUCTS]
    + [getattr(Tensor, name) for name in (*_METHODS, "__getitem__", *_VIEWS)]
    + [getattr(Tensor, name).__get__ for name in ("T", "mT")]
)
"""Functions whose weights may be read as bf16: products, sums with activations, and views."""
OF_ONE_DTYPE = frozenset(
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in ("mv", "dot", "vdot", "addmv", "outer", "addr")
)
"""Functions that autocast leaves alone on a CPU, and that refuse a bf16 view of a weight beside an
fp32 vector, as `torch.nn.utils.spectral_norm` has them."""


class LoweredWeights(TorchFunctionMode):
    """Read fp32 weights of two or more dimensions as bf16, where gradients are recorded.

    A pass that begins without gradients reads them so too. A region without gradients inside of
    another pass does not: there a module may edit its weights. It acts within autocast alone, so a
    region of `autocast(enabled=False)` keeps fp32 weights. torch.compile traces it, and one graph
    casts each weight once.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.recording = torch.is_grad_enabled()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run `func` with its weights as bf16 if it is one of the functions above."""
        named = kwargs or {}
        if func in LOOKUPS and self._acts():
            weight = args[1] if len(args) > 1 else named.get("weight")
            found = func(*args, **named)
            return found.bfloat16() if is_weight(weight) else found
        if func in READERS and self._acts():
            return func(*map(_lower, args), **{key: _lower(one) for key, one in named.items()})
        if func in OF_ONE_DTYPE and torch.is_autocast_enabled(self.device_type):
            given = [one.dtype for one in (*args, *named.values()) if isinstance(one, Tensor)]
            if torch.bfloat16 in given and torch.float32 in given:
                args, named = tuple(map(_widened, args)), {k: _widened(v) for k, v in named.items()}
        return func(*args, **named)

    def _acts(self) -> bool:
        as_begun = torch.is_grad_enabled() == self.recording
        return as_begun and torch.is_autocast_enabled(self.device_type)


def lowered_forward(module: nn.Module, device_type: str) -> Callable[..., object]:
    """Return a forward of the module under `LoweredWeights`.

    For a step that torch.compile traces as a whole: the rest of it, backward above all, must not
    run under a mode.
    """
    written = module.forward

    @functools.wraps(written)
    def forward(*given: object, **named: object) -> object:
        with LoweredWeights(device_type):
            return written(*given, **named)

    return forward


@contextmanager
def mixed_precision(precision: str, device_type: str) -> Iterator[None]:
    """Enter a StepConfig's precision: nothing, autocast, or autocast with bf16 weights."""
    if precision not in AUTOCAST:
        yield
        return
    with torch.autocast(device_type, torch.bfloat16):
        if precision == "bf16_autocast":
            yield
            return
        with LoweredWeights(device_type):
            yield


def is_weight(value: object) -> TypeGuard[nn.Parameter]:
    """Return True for what is read as bf16: a trained fp32 parameter of two or more dimensions."""
    return (
        isinstance(value, nn.Parameter)
        and value.requires_grad
        and value.dtype == torch.float32
        and value.dim() >= 2
    )


def _lower(value: object) -> object:
    if isinstance(value, tuple | list):
        return type(value)(_lower(one) for one in value)
    return value.bfloat16() if is_weight(value) else value


def _widened(value: object) -> object:
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        return value.float()
    return value


# bf16 copies of a model's fp32 weights, for steps whose whole update Ratchet runs.
#
# The parameters stay fp32 and are what everybody else sees. Forward and backward run on the
# copies, which collect the gradients in bf16; the update reads those, steps the parameters and
# rounds them into the copies in one pass (Micikevicius et al. 2018, section 3.1). So no step casts
# a weight.


class WeightCopies:
    """One bf16 copy of each trained fp32 weight of two or more dimensions.

    A copy is made when the weight is first used and made again if the weight has changed since:
    another version or another memory. (An edit in place through `.data` leaves neither; the next
    update brings it into the copy.)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        self._states: dict[nn.Parameter, tuple[int, int]] = {}
        """Version and address of each weight when its copy was made."""

    def read_by(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return what forward reads for a parameter, and where its gradient arrives."""
        return self._copies.get(parameter, parameter)

    def with_gradient(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the copy while it has the gradient, else the parameter."""
        copy = self._copies.get(parameter)
        return parameter if copy is None or copy.grad is None else copy

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model's modules hold the copies, all of them up to date."""
        swapped: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []
        try:
            for module in self.model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and is_weight(parameter):
                        swapped.append((module._parameters, name, parameter))
            for held, name, parameter in swapped:
                held[name] = self._fresh(parameter)
            yield
        finally:
            for held, name, parameter in swapped:
                held[name] = parameter

    def rounded(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note that an update has just rounded the parameters into their copies."""
        for parameter in parameters:
            self._states[parameter] = _state(parameter)

    def hand_over(self) -> None:
        """Add the copies' gradients to the parameters' own, in fp32, and drop them.

        Another update will read them, so the copies are made again before they are used: torch's
        fused updates leave no new version behind.
        """
        self._states.clear()
        for parameter, copy in self._copies.items():
            if copy.grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = copy.grad.float()
            else:
                parameter.grad.add_(copy.grad)
            copy.grad = None

    def _fresh(self, parameter: nn.Parameter) -> nn.Parameter:
        copy = self._copies.get(parameter)
        if copy is None:
            copy = nn.Parameter(parameter.detach().to(torch.bfloat16))
            self._copies[parameter] = copy
        elif self._states.get(parameter) != _state(parameter):
            copy.data.copy_(parameter.detach())
        self._states[parameter] = _state(parameter)
        return copy


def _state(parameter: nn.Parameter) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()
