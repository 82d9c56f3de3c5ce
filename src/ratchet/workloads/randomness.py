"""Noise in a loss: the same weights, batch and seed must give the same loss."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

SAME_LOSS = {"cpu": 1e-5, "cuda": 1e-4}
"""Relative. Atomic additions on a GPU, and products in bf16, change less than this."""


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Run with fixed seeds of torch, numpy and Python, and put back the generators' states."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Return copies of the model's buffers, for `put_back`."""
    return [buffer.detach().clone() for buffer in model.buffers()]


def put_back(model: nn.Module, buffers: list[Tensor]) -> None:
    """Undo what a forward pass did to buffers (running means); untouched ones stay untouched."""
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        if not torch.equal(buffer, before):
            with torch.no_grad():
                buffer.copy_(before)


def noise_in(
    name: str, device: torch.device, first: float, second: float, first_again: Callable[[], float]
) -> str | None:
    """Return a warning where a loss is random.

    `first` and `second` are one batch's losses, one drawn after the other; `first_again` computes
    the first from the same seeds.
    """
    tolerance = SAME_LOSS[device.type]
    if math.isclose(first, second, rel_tol=tolerance):
        return None
    again = first_again()
    if math.isclose(first, again, rel_tol=tolerance):
        return (
            f"workload {name!r}: the loss is random ({first:.6g}, then {second:.6g} for the same "
            "batch), as with dropout: compiled code draws other numbers, so its gradients cannot "
            "be compared; set dropout to 0 for Ratchet"
        )
    return (
        f"workload {name!r}: two runs with the same seed and batch gave the losses {first:.6g} and "
        f"{again:.6g}: no seed controls the noise; seed it from the batch's index or take it out, "
        "or no change can be checked"
    )
