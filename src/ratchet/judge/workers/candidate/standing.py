"""Tensors that stay from call to call, as a program's loop hands them to a kernel in Python.

A batch gives each of its calls memory of its own. Here the values go on into tensors that outlive
the call: one that is refilled, two in turn, views of a larger one. `Handing` names the ways.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ratchet.judge.sandbox.shared_memory import Handing, span
from ratchet.judge.workers.candidate.results import DeclinedCase

MODEL, STATE = "model", "state_parts"
"""Attributes of an entry that is a model: the module, and how many of its inputs are its state."""
TOLD: Final = (Handing.REFILLED, Handing.IN_TURN)  # A version counter tells that they were refilled
REJECTABLE: Final = (Handing.PART, Handing.GRADIENT, Handing.OTHER_MODE)
"""Ways in which a kernel may raise: then it is called in memory of the call's own."""
PART_SETS, ALIGNMENT = 2, 64  # A larger tensor has room for so many of a kind


class Standing:
    """The tensors of the last calls of each form, and the calls on them."""

    def __init__(self) -> None:
        self._cases: dict[str, list[_Held]] = {}
        self.rejected: dict[Handing, str] = {}
        """Errors that the kernel raised where it may, by the way of the call."""

    def call(
        self,
        entry: Callable[..., Any],
        how: Handing,
        call: int,
        inputs: Sequence[Tensor],
        in_place: Sequence[int],
        *more: object,
    ) -> Any:
        """Call the entry on a call's inputs, handed over in this way; return what it returns."""
        held = self._held(inputs)
        given = [one.given(how, call, of) for one, of in zip(held, inputs, strict=True)]
        if how not in REJECTABLE or how in self.rejected:
            return entry(*(inputs if how in self.rejected else given), *more)
        try:
            match how:
                case Handing.GRADIENT:
                    return _with_gradients(entry, given, in_place, more)
                case Handing.OTHER_MODE:
                    with _without_compiling():
                        return entry.in_other_mode(*given, *more)  # type: ignore[attr-defined]
            return entry(*given, *more)
        except DeclinedCase:
            raise
        except Exception as error:
            self.rejected[how] = f"{type(error).__name__}: {error}"[:200]
        return entry(*inputs, *more)

    def _held(self, inputs: Sequence[Tensor]) -> list[_Held]:
        form = str([(tuple(one.shape), one.stride(), one.dtype) for one in inputs])
        if form not in self._cases:
            self._cases[form] = [_Held(one) for one in inputs]
        return self._cases[form]


class _Held:
    """The tensors that stay for one input of a case."""

    def __init__(self, like: Tensor) -> None:
        self._size, self._stride = tuple(like.shape), like.stride()
        self._count = span(self._size, self._stride)
        self._apart = -(-self._count * like.itemsize // ALIGNMENT) * ALIGNMENT // like.itemsize
        self._same: dict[int, tuple[Tensor, Tensor]] = {}
        self._larger: Tensor | None = None
        self._swapped: Tensor | None = None

    def given(self, how: Handing, call: int, own: Tensor) -> Tensor:
        """Return what the kernel gets for an input's own tensor."""
        if not self._count:
            return own
        if how is Handing.SWAPPED:
            if self._swapped is None:
                self._swapped = own.detach()
            self._swapped.data = own
            return self._swapped
        if how is Handing.PART:
            return self._part(call // 2 % PART_SETS, own)
        place = call % 2 if how is Handing.IN_TURN else 0
        if place not in self._same:
            made = torch.empty_strided(self._size, self._stride, dtype=own.dtype, device=own.device)
            flat = torch.empty(0, dtype=own.dtype, device=own.device)
            flat.set_(made.untyped_storage(), 0, (self._count,), (1,))
            self._same[place] = made, flat
        held, flat = self._same[place]
        flat.copy_(self._flat(own))
        if how in TOLD:
            torch.autograd.graph.increment_version(held)
        return held

    def _part(self, place: int, own: Tensor) -> Tensor:
        if self._larger is None:
            room = self._apart * (PART_SETS + 2)
            self._larger = torch.empty(room, dtype=own.dtype, device=own.device)
        first = self._apart * (1 + place)
        self._larger.data[first : first + self._count].copy_(self._flat(own))
        return self._larger.as_strided(self._size, self._stride, first)

    def _flat(self, one: Tensor) -> Tensor:
        return one.as_strided((self._count,), (1,), one.storage_offset())


def _with_gradients(
    entry: Callable[..., Any], given: Sequence[Tensor], in_place: Sequence[int], more: Sequence[Any]
) -> Any:
    """Call with gradients on; the results are detached."""
    first = getattr(entry, STATE, 0)
    wanting = [
        one.detach().requires_grad_()
        if at >= first and at not in in_place and one.is_floating_point() and one.itemsize > 1
        else one
        for at, one in enumerate(given)
    ]
    with _wanting(getattr(entry, MODEL, None)), _without_compiling(), torch.enable_grad():
        found = entry(*wanting, *more)
    if isinstance(found, tuple) and all(type(one) is Tensor for one in found):
        return tuple(one.detach() for one in found)
    return found


@contextlib.contextmanager
def _wanting(model: nn.Module | None) -> Iterator[None]:
    """Let a model's real weights want gradients inside."""
    found = [] if model is None else [one for one in model.parameters() if not one.requires_grad]
    found = [one for one in found if one.is_floating_point()]
    for one in found:
        one.requires_grad_()
    try:
        yield
    finally:
        for one in found:
            one.requires_grad_(False)


def _without_compiling() -> contextlib.AbstractContextManager[object]:
    """Return a context in which what torch.compile would compile anew runs as it is written."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance(
        "eager_on_recompile"
    )
    return stance
