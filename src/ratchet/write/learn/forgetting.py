"""Forgetting: what is measured on held-out pretraining text, and what is replayed against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.base.errors import LearnError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

WINDOWS = 16
"""Windows that are measured, at most."""
NUMBERS = 100_000_000
"""Log-probabilities of the base model that are kept, at most: large vocabularies get fewer
windows."""


class TextWindows:
    """Documents cut into windows of `length` tokens."""

    def __init__(
        self, texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, length: int
    ) -> None:
        ids: list[int] = []
        for text in texts:
            found = tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]
            ids += [*found, tokenizer.eos_token_id]
        count = len(ids) // length
        if count < 1:
            raise LearnError(
                f"the replay text has {len(ids)} tokens and a window {length}: "
                "give more text with --text, or a smaller --context"
            )
        self._windows = torch.tensor(ids[: count * length], dtype=torch.long).view(count, length)
        self.length = length

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, count: int, *, seed: int, step: int) -> Tensor:
        """Return the windows of a step, [count, length]; the seed and the step decide which."""
        order = np.random.default_rng([seed, step]).integers(0, len(self._windows), size=count)
        return self._windows[torch.from_numpy(order)]

    def spread(self, count: int) -> Tensor:
        """Return windows spread evenly over all documents, [up to count, length]."""
        places = torch.linspace(0, len(self) - 1, min(count, len(self)))
        return self._windows[places.long()]


class ReplayDebt:
    """Counts the windows that each step owes, so that `share` of all tokens are replayed.

    A step of few tokens owes a part of a window. Parts add up until a window is due.
    """

    def __init__(self, share: float, length: int, owed: float = 0.0) -> None:
        self.share, self._length, self.owed = share, length, owed

    def due(self, tokens: int) -> int:
        """Return how many windows to replay beside `tokens` other tokens."""
        if self.share <= 0:
            return 0
        self.owed += tokens * self.share / (1 - self.share)
        count = int(self.owed // self._length)
        self.owed -= count * self._length
        return count


@dataclass(frozen=True, kw_only=True, slots=True)
class Retained:
    """A model's remaining knowledge of its pretraining."""

    loss: float
    """On held-out text, in nats a token."""
    completed: float
    """Share of its tokens that the model would have written itself."""
    divergence: float
    """KL from the base model's prediction to this one's, in nats a token."""
    forgetting: float
    """Rise of the loss above the base model's."""


class BaseMemory:
    """The base model's predictions on held-out text; later models are compared with them."""

    def __init__(self, base: PreTrainedModel, held_out: TextWindows) -> None:
        each = held_out.length * base.get_input_embeddings().weight.shape[0]
        self._windows = held_out.spread(max(1, min(WINDOWS, NUMBERS // each)))
        self._base = _predicted(base, self._windows)
        self._loss, _ = _read(self._base, self._windows)

    def measure(self, model: PreTrainedModel) -> Retained:
        """Compare a model with the base model."""
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
def _predicted(model: PreTrainedModel, windows: Tensor) -> Tensor:
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
