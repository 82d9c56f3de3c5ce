"""Well-known variants of a reference's operations, to say in a sentence why an answer is wrong.

The reference runs once more for each variant of what it calls, and the first whose answers are the
kernel's is named. What runs compiled or scripted is not seen, and never explained.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MOST_S: Final = 2.0
NORMS: Final = "layer_norm group_norm instance_norm batch_norm rms_norm"
LOSSES: Final = (
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div triplet_margin_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits"
)
Call = Callable[..., Any]
Outputs = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class KnownVariant:
    """One way in which an operation is often written otherwise."""

    words: str
    names: frozenset[str]
    change: Call
    """Gets the function, its arguments and a copy of its named ones; returns the variant's result,
    or NotImplemented where it does not apply."""


class _Changed(TorchFunctionMode):
    """Runs a variant in place of the operations that it changes; without one it only watches."""

    def __init__(self, variant: KnownVariant | None = None) -> None:
        super().__init__()
        self._variant = variant
        self.seen = set[str]()
        self.changed = False

    def __torch_function__(
        self, func: Call, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name: str = getattr(func, "__name__", "")
        made: Any = NotImplemented
        self.seen.add(name)
        if self._variant is not None and name in self._variant.names:
            made = self._variant.change(func, list(args), dict(kwargs or {}))
        if made is NotImplemented:
            return func(*args, **(kwargs or {}))
        self.changed = True
        return made


def explanation(
    run: Callable[[Outputs], Outputs],
    inputs: Sequence[Outputs],
    is_right: Callable[[Sequence[Outputs]], bool],
) -> str:
    """Return the words of the first variant under which the kernel's answer is right, or "".

    `run` calls the reference. `is_right` compares the answer with the reference's for each of the
    `inputs`: in their own dtypes, and in float64.
    """
    began = time.perf_counter()
    with _Changed() as plain:
        run(inputs[0])
    for variant in (one for one in VARIANTS if not one.names.isdisjoint(plain.seen)):
        if time.perf_counter() - began > MOST_S:
            break
        # a variant may not fit a call
        with suppress(ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            with _Changed(variant) as mode:
                found = [run(one) for one in inputs]
            if mode.changed and is_right(found):
                return variant.words
    return ""


def _gelu(wanted: str, call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    given = named.pop("approximate", "none")
    if wanted == "sigmoid":
        return args[0] * torch.sigmoid(1.702 * args[0])
    return NotImplemented if given == wanted else call(*args, **named, approximate=wanted)


def _spread(call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    """Divide a variance by n where it was n - 1, and the other way round."""
    flags = [at for at, one in enumerate(args) if isinstance(one, bool)]
    if "correction" in named:
        return call(*args, **{**named, "correction": 1 - named["correction"]})
    if flags and "unbiased" not in named:
        return call(*args[: flags[0]], not args[flags[0]], *args[flags[0] + 1 :], **named)
    return call(*args, **{**named, "unbiased": not named.get("unbiased", True)})


def _norm(how: str, call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    """Normalise with another variance or epsilon."""
    given, name = _bound(call, args, named), call.__name__
    x, eps = given["input"], given.get("eps")
    channel = (-1, *[1] * (x.dim() - 2))
    if eps is None or (name == "batch_norm" and not given["training"]):
        return NotImplemented
    over: Sequence[int]
    if name in ("layer_norm", "rms_norm"):
        rows, over = x, range(x.dim() - len(given["normalized_shape"]), x.dim())
    elif name == "group_norm":
        rows, over = x.unflatten(1, (given["num_groups"], -1)), range(2, x.dim() + 1)
    else:
        rows, over = x, [0, *range(2, x.dim())][name == "instance_norm" :]
    moved = rows if name == "rms_norm" else rows - rows.mean(tuple(over), keepdim=True)
    count = math.prod(rows.shape[one] for one in over)
    variance = moved.square().mean(tuple(over), keepdim=True)
    scale = {
        "unbiased": (variance * count / max(1, count - 1) + eps).sqrt(),
        "outside": variance.sqrt() + eps,
        "none": variance.sqrt(),
    }[how]
    made = (moved / scale).reshape(x.shape)
    for key, merge in (("weight", torch.mul), ("bias", torch.add)):
        if (one := given.get(key)) is not None:
            made = merge(made, one if name in ("layer_norm", "rms_norm") else one.view(channel))
    return made


def _statistics(call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    given = _bound(call, args, named)
    copies = {key: given[key].clone() for key in ("running_mean", "running_var")}
    return call(**{**given, **copies, "training": not given["training"]})


def _set(key: str, value: Any, call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    given = _bound(call, args, named)
    return NotImplemented if given.get(key) == value else call(**{**given, key: value})


def _attention(key: str, value: Any, call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    return (
        NotImplemented if named.get(key, False) == value else call(*args, **{**named, key: value})
    )


def _dimension(shift: int, call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    dims = args[0].dim()
    dim = args.pop(1) if len(args) > 1 else named.pop("dim")
    return NotImplemented if shift >= dims else call(args[0], (dim + shift) % dims, **named)


def _without_bias(call: Call, args: list[Any], named: dict[str, Any]) -> Any:
    if (args[2] if len(args) > 2 else named.get("bias")) is None:
        return NotImplemented
    named.pop("bias", None)
    return call(*args[:2], None, *args[3:], **named)


def _bound(call: Call, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(getattr(functional, call.__name__)).bind(*args, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def _table() -> Iterator[tuple[str, str, Call]]:
    yield "the tanh GELU in place of the exact one", "gelu", partial(_gelu, "tanh")
    yield "the exact GELU in place of the tanh one", "gelu", partial(_gelu, "none")
    yield "the GELU x sigmoid(1.702 x)", "gelu", partial(_gelu, "sigmoid")
    words = "the variance divided by n in place of n - 1, or the reverse"
    yield words, "var std var_mean std_mean", _spread
    yield "a norm whose variance is divided by n - 1", NORMS, partial(_norm, "unbiased")
    yield "a norm's epsilon outside of the square root", NORMS, partial(_norm, "outside")
    yield "a norm without its epsilon", NORMS, partial(_norm, "none")
    words = "batch_norm's running statistics in place of the batch's, or the reverse"
    yield words, "batch_norm", _statistics
    for how in ("sum", "mean", "batchmean"):
        yield f"the loss reduced by {how!r}", LOSSES, partial(_set, "reduction", how)
    yield "a sum in place of the mean", "mean", lambda _, given, named: torch.sum(*given, **named)
    yield "a mean in place of the sum", "sum", lambda _, given, named: torch.mean(*given, **named)
    for shift in (1, 2, 3):
        words, names = "another dimension", "softmax log_softmax cumsum cumprod"
        yield f"{words} of the softmax or cumulative sum", names, partial(_dimension, shift)
    for flag, words in ((True, "a causal mask"), (False, "no causal mask")):
        name = "scaled_dot_product_attention"
        yield f"{words} in attention", name, partial(_attention, "is_causal", flag)
    yield "no scale in attention", name, partial(_attention, "scale", 1.0)
    names = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
    yield "no bias", names, _without_bias


VARIANTS: Final = tuple(
    KnownVariant(one, frozenset(two.split()), act) for one, two, act in _table()
)
