"""Gradients of a loss by `backward()`, which every model takes; the parameters keep their own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


def gradients_of(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return the gradients of `loss`, and leave each parameter's `grad` as it was.

    `torch.autograd.grad` does not see parameters behind reentrant checkpointing.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        loss.backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
