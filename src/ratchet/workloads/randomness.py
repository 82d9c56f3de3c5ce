"""Detect noise in a loss: the same weights, batch and seed must give the same loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

SAME_LOSS = {"cpu": 1e-5, "cuda": 1e-4}
"""Relative tolerance. Atomic additions on a GPU and products in bf16 stay below it."""


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Return copies of the model's buffers, for `put_back`."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def put_back(model: nn.Module, buffers: list[Tensor]) -> None:
    """Undo a forward pass's changes to buffers (running means); skip unchanged buffers."""
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        if not torch.equal(buffer, before):
            with torch.no_grad():
                buffer.copy_(before)


def noise_in(
    name: str, device: torch.device, first: float, second: float, first_again: Callable[[], float]
) -> str | None:
    """Return a warning if a loss is random.

    `first` and `second` are losses of one batch, computed in sequence. `first_again` recomputes the
    first from the same seeds.
    """
    tolerance = SAME_LOSS[device.type]
    if math.isclose(first, second, rel_tol=tolerance):
        return None
    again = first_again()
    if math.isclose(first, again, rel_tol=tolerance):
        return (
            f"workload {name!r}: the loss is random ({first:.6g}, then {second:.6g} for the same "
            "batch), as with dropout. Compiled code draws other numbers with the same odds, so "
            "gradients are compared with the draws of the step as written"
        )
    return (
        f"workload {name!r}: two runs with the same seed and batch gave the losses {first:.6g} and "
        f"{again:.6g}: no seed controls the noise. Seed it from the batch's index or remove it; "
        "otherwise no change can be checked"
    )
