"""Gradients of a reference by torch's own autograd: the rival that a training step really runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Forward = Callable[..., tuple[Tensor, ...]]


def gradient_of(forward: Forward, *, inputs: Sequence[int], outputs: int = 1) -> Forward:
    """f(*incoming, *tensors, scalars) -> the gradients of `inputs`, in their order.

    `outputs` outputs of the forward have an incoming gradient each; further ones have none.
    """

    def backward(*given: Tensor | Sequence[float]) -> tuple[Tensor, ...]:
        *tensors, scalars = given
        incoming, own = tensors[:outputs], list(tensors[outputs:])
        with torch.enable_grad():
            for place in inputs:
                own[place] = own[place].detach().requires_grad_()  # type: ignore[union-attr]
            answers = forward(*own, scalars)[:outputs]
            wanted = [own[place] for place in inputs]
            return torch.autograd.grad(answers, wanted, incoming)  # type: ignore[arg-type]

    return backward
