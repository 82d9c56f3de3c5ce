"""bf16 weights without bf16 parameters: a forward pass reads fp32 weights as bf16.

Parameters stay as the script made them, in fp32, so everything else that reads or writes them
(checkpoints, clamps, averages, evaluation) sees what is trained. Gradients arrive and add up in
fp32. This is mixed precision with fp32 master weights (Micikevicius et al. 2018, section 3.1),
whose bf16 copies live for one forward and backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ratchet.train.workloads.config import AUTOCAST

LOOKUPS = frozenset({F.embedding, F.embedding_bag})
"""Functions that read a few rows of their weight: the result is cast, not the table."""
READERS = frozenset(
    {
        F.linear,
        F.bilinear,
        F.multi_head_attention_forward,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        torch.matmul,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.baddbmm,
        torch.einsum,
        torch.add,
        torch.cat,
        torch.stack,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        Tensor.mm,
        Tensor.bmm,
        Tensor.add,
        Tensor.__add__,
        Tensor.__radd__,
        Tensor.expand,
        Tensor.expand_as,
        Tensor.t,
        Tensor.transpose,
        Tensor.permute,
        Tensor.view,
        Tensor.reshape,
        Tensor.unsqueeze,
        Tensor.__getitem__,
        Tensor.T.__get__,  # type: ignore[attr-defined]
        Tensor.mT.__get__,  # type: ignore[attr-defined]
    }
)
"""Functions whose weights may be read as bf16: products, sums with activations, and views."""
OF_ONE_DTYPE = frozenset(
    {
        torch.mv,
        torch.dot,
        torch.vdot,
        torch.addmv,
        torch.outer,
        torch.addr,
        Tensor.mv,
        Tensor.dot,
        Tensor.vdot,
        Tensor.addmv,
        Tensor.outer,
        Tensor.addr,
    }
)
"""Functions that autocast leaves alone on a CPU, and that refuse a bf16 view of a weight beside an
fp32 vector, as `torch.nn.utils.spectral_norm` has them."""


class LoweredWeights(TorchFunctionMode):
    """Read fp32 weights of two or more dimensions as bf16, where gradients are recorded.

    It acts within autocast alone, so a region of `autocast(enabled=False)` keeps fp32 weights.
    torch.compile traces it, and one graph casts each weight once.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type

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
            return func(*_lowered(args), **{key: _lower(value) for key, value in named.items()})
        if func in OF_ONE_DTYPE and torch.is_autocast_enabled(self.device_type):
            given = [one.dtype for one in (*args, *named.values()) if isinstance(one, Tensor)]
            if torch.bfloat16 in given and torch.float32 in given:
                args, named = tuple(map(_widened, args)), {k: _widened(v) for k, v in named.items()}
        return func(*args, **named)

    def _acts(self) -> bool:
        return torch.is_grad_enabled() and torch.is_autocast_enabled(self.device_type)


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


def _lowered(values: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(_lower(value) for value in values)
