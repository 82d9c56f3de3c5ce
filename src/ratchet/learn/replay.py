"""Windows of pretraining text: the ones to train on and replay, and those held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratchet.base.errors import LearnError


class TextWindows:
    """Windows of `length` tokens out of documents, in an order that a seed decides."""

    def __init__(self, texts: Sequence[str], tokenizer: Any, length: int) -> None:
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
        """Return the windows of a step, [count, length]."""
        order = np.random.default_rng([seed, step]).integers(0, len(self._windows), size=count)
        return self._windows[torch.from_numpy(order)]

    def spread(self, count: int) -> Tensor:
        """Return windows spread evenly over all, [up to count, length]: those that are measured."""
        places = torch.linspace(0, len(self) - 1, min(count, len(self)))
        return self._windows[places.long()]


class ReplayDebt:
    """Count the windows that each step owes, so that their share of all tokens is `share`.

    A step of few tokens owes a part of a window; parts add up until one is due.
    """

    def __init__(self, share: float, length: int, owed: float = 0.0) -> None:
        self.share, self._length, self.owed = share, length, owed

    def due(self, tokens: int) -> int:
        """Return the windows to replay beside `tokens` others."""
        if self.share <= 0:
            return 0
        self.owed += tokens * self.share / (1 - self.share)
        count = int(self.owed // self._length)
        self.owed -= count * self._length
        return count
