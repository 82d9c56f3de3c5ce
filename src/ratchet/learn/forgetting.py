"""Forgetting: a model's loss on held-out pretraining text, and its distance from the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.learn.replay import TextWindows

WINDOWS = 16
"""Windows that are measured, at most."""
NUMBERS = 100_000_000
"""Log-probabilities of the base model that are kept, at most: large vocabularies get fewer
windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retained:
    """A measure of what a model still knows of its pretraining."""

    loss: float
    """On held-out text, in nats a token."""
    completed: float
    """Share of its tokens that the model would have written itself."""
    divergence: float
    """KL from the base model's prediction to this one's, in nats a token."""
    forgetting: float
    """Rise of the loss above the base model's."""


class BaseMemory:
    """The base model's predictions on held-out text, to compare a later model with."""

    def __init__(self, base: Any, held_out: TextWindows) -> None:
        each = held_out.length * base.get_input_embeddings().weight.shape[0]
        self._windows = held_out.spread(max(1, min(WINDOWS, NUMBERS // each)))
        self._base = _predicted(base, self._windows)
        self._loss, _ = _read(self._base, self._windows)

    def measure(self, model: Any) -> Retained:
        """Return what `model` still knows."""
        now = _predicted(model, self._windows)
        loss, completed = _read(now, self._windows)
        divergence = float((self._base.exp() * (self._base - now)).sum(-1).mean())
        return Retained(
            loss=loss,
            completed=completed,
            divergence=max(0.0, divergence),
            forgetting=loss - self._loss,
        )


@torch.no_grad()
def _predicted(model: Any, windows: Tensor) -> Tensor:
    """Return the log-probabilities of every next token, [windows, length - 1, vocabulary]."""
    training = model.training
    model.eval()
    place = next(model.parameters()).device
    found = [
        F.log_softmax(model(input_ids=one[None].to(place)).logits[:, :-1].float(), dim=-1).cpu()
        for one in windows
    ]
    model.train(training)
    return torch.cat(found)


def _read(predicted: Tensor, windows: Tensor) -> tuple[float, float]:
    wanted = windows[:, 1:]
    loss = -predicted.gather(-1, wanted[..., None]).mean()
    return float(loss), float((predicted.argmax(-1) == wanted).float().mean())
