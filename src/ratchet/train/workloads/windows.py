"""Batches of token windows, each a pure function of the seed and its index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.base.errors import WorkloadError
from ratchet.base.text import (
    SMALL_TEXT_BYTES,
    TEXT_LIMIT_BYTES,
    Tokens,
    file_text,
    standard_library_text,
    tokens_of,
)
from ratchet.train.workloads.family import Data

SMALL_VOCABULARY = 4096
"""Largest vocabulary for which a megabyte of text is enough."""
LARGEST_VOCABULARY = 32_000
"""Largest vocabulary that twenty megabytes of text fill; larger ones use only their first ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Random windows from one stream of tokens."""

    tokens: Tokens
    batch_size: int
    length: int
    seed: int

    def __call__(self, index: int) -> NDArray[np.int64]:
        """Return window number `index`: int64 [batch_size, length]."""
        rng = np.random.default_rng((self.seed, index))
        starts = rng.integers(0, len(self.tokens) - self.length + 1, size=self.batch_size)
        picked = self.tokens[starts[:, None] + np.arange(self.length)]
        return np.asarray(picked, np.int64)


def text_windows(data: Data, *, vocabulary: int, batch_size: int, length: int) -> Windows:
    """Return windows of `length` tokens from the data's text or the standard library's sources."""
    limit_bytes = SMALL_TEXT_BYTES if vocabulary <= SMALL_VOCABULARY else TEXT_LIMIT_BYTES
    if data.text is None:
        text, name = standard_library_text(limit_bytes), "the standard library"
    else:
        text, name = file_text(Path(data.text), limit_bytes), str(data.text)
    tokens = tokens_of(text, min(vocabulary, LARGEST_VOCABULARY))
    if len(tokens) < 2 * length:
        raise WorkloadError(
            f"text {name!r} is too short: {len(tokens)} tokens, but windows of {length} need "
            f"{2 * length}; give a longer text or a shorter sequence"
        )
    return Windows(tokens=tokens, batch_size=batch_size, length=length, seed=data.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class NextToken:
    """Make (inputs, targets) for a causal language model: int64 [batch, sequence] each."""

    windows: Windows
    device: torch.device

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        window = torch.from_numpy(self.windows(index)).to(self.device)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def next_token_batches(data: Data, *, vocabulary: int, batch_size: int, sequence: int) -> NextToken:
    """Return batches for a causal language model with this vocabulary and sequence."""
    windows = text_windows(data, vocabulary=vocabulary, batch_size=batch_size, length=sequence + 1)
    return NextToken(windows=windows, device=data.device)
