"""Gradients of a reference by torch's autograd: the rival that a training step runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ratchet.base.errors import KernelError

Forward = Callable[..., tuple[Tensor, ...]]


def gradient_of(forward: Forward, *, inputs: Sequence[int], outputs: int = 1) -> Forward:
    """Return the backward of a reference: f(*incoming, *tensors, scalars) -> gradients.

    `incoming` are the gradients of the forward's first `outputs` outputs, with those outputs'
    shapes and dtypes; `tensors` are all of the forward's inputs. The result holds the gradients of
    the inputs at the positions `inputs`, in that order. Further outputs have no incoming gradient.

    Raises:
        KernelError: at a call, if a position is not a real-valued input of the forward.
    """

    def backward(*given: Tensor | Sequence[float]) -> tuple[Tensor, ...]:
        *tensors, scalars = given
        incoming, own = tensors[:outputs], list(tensors[outputs:])
        _check(own, inputs)
        with torch.enable_grad():
            for place in inputs:
                own[place] = own[place].detach().requires_grad_()  # type: ignore[union-attr]
            answers = forward(*own, scalars)[:outputs]
            wanted = [own[place] for place in inputs]
            return torch.autograd.grad(answers, wanted, incoming)  # type: ignore[arg-type]

    backward.__signature__ = _signature(forward, outputs)  # type: ignore[attr-defined]
    return backward


def _signature(forward: Forward, outputs: int) -> inspect.Signature:
    """The forward's names, after those of the incoming gradients."""
    names = ["grad"] if outputs == 1 else [f"grad_{place}" for place in range(outputs)]
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    incoming = [inspect.Parameter(name, plain) for name in names]
    own = inspect.signature(forward).parameters.values()
    return inspect.Signature([*incoming, *(one for one in own if one.name not in names)])


def _check(own: Sequence[Tensor | Sequence[float]], inputs: Sequence[int]) -> None:
    for place in inputs:
        if not 0 <= place < len(own):
            raise KernelError(
                f"gradient_of: there is no input {place} after the incoming gradients, only "
                f"{len(own)} inputs: give the gradients of the outputs first, then every input"
            )
        if not own[place].is_floating_point():  # type: ignore[union-attr]
            raise KernelError(
                f"gradient_of: input {place} is not real, so it has no gradient: leave it out"
            )
