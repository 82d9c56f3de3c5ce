"""The results of a call in Python: checked, kept alive, and reported to the judge by address.

The judge reads them there while the process is stopped, so neither arm copies anything inside the
clock: a candidate that knows of a copy that only the harness needs could save it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems.model_state import FormError
from ratchet.judge.sandbox.shared_memory import span

MOST_GAPS: Final = 2
"""A result whose elements lie over more than this many times their size is made dense. So is one
whose elements share memory: the reference has written each of them."""
WANTS_FORMS: Final = "wants_forms"
"""Attribute of an entry that also takes its results' forms and the indices of changed inputs."""
Kept = list[Sequence[Tensor]]  # The results of each call of a batch


class EmulatedLaunches:
    """The launches of an emulator of machine code, if one is loaded in this process."""

    is_loaded = False  # The emulator sets it
    count: Callable[[Callable[[], Any]], Any] | None = None
    """A census, while it is taken: it runs a launch and returns its result."""

    def run(self, launch: Callable[[], Any]) -> Any:
        return launch() if self.count is None else self.count(launch)


EMULATED: Final = EmulatedLaunches()


class DeclinedCase(KernelError):
    """The entry does not take these inputs."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the entry declined with code {code}")
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultForm:
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def blank(self) -> Tensor:
        """Return a tensor with every bit set, as outputs are before a call."""
        size = math.prod(self.shape) * self.dtype.itemsize
        flat = torch.full((size,), 255, dtype=torch.uint8, device=self.device)
        return flat.view(self.dtype).view(self.shape)


def as_results(outputs: object, answers: Sequence[ResultForm]) -> tuple[Tensor, ...]:
    """Return an entry's results, one plain tensor of each form. Raises FormError.

    Copies a result with large gaps, one that repeats elements, and one whose memory does not hold
    its values (a lazy sign).
    """
    if not isinstance(outputs, tuple) or len(outputs) != len(answers):
        raise FormError(f"the entry must return a tuple of {len(answers)} tensors")
    return tuple(_result(one, answer) for one, answer in zip(outputs, answers, strict=True))


def places(kept: Kept) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Return the address of the first element and the strides of each result of each call."""
    return [[(one.data_ptr(), one.stride()) for one in results] for results in kept]


def _result(output: object, answer: ResultForm) -> Tensor:
    if type(output) is torch.nn.Parameter:
        output = output.detach()
    if type(output) is not Tensor or output.shape != answer.shape or output.dtype != answer.dtype:
        shown = f"{tuple(output.shape)} {output.dtype}" if isinstance(output, Tensor) else output
        raise FormError(
            f"an output is {shown!s:.100}, not a plain tensor {tuple(answer.shape)} {answer.dtype}"
        )
    if output.device != answer.device:
        raise FormError(f"an output lies on {output.device}, and the inputs on {answer.device}")
    if output.layout != torch.strided:
        raise FormError(f"an output's layout is {output.layout}: return a dense tensor")
    if output.is_neg():
        output = output.resolve_neg()
    held = span(output.shape, output.stride())
    return output if output.numel() <= held <= MOST_GAPS * output.numel() else output.contiguous()
