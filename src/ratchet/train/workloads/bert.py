"""BERT: bidirectional attention, LayerNorm after each branch, masked words (Devlin et al. 2018).

Shapes: B batch, T sequence, H hidden, N heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.family import (
    Data,
    Family,
    TextSize,
    Windows,
    initialise,
    sizes_of,
    text_windows,
    token_loss,
)

MASKED_SHARE = 0.15
"""Share of words to predict: 80 % become the mask, 10 % a random word, 10 % stay (section 3.1)."""
IGNORED = -100
"""Target of a word that is not predicted: the default `ignore_index` of F.cross_entropy."""
PREDICTED_STREAM = 1
"""Stream number that keeps the masks' random numbers apart from those of the windows."""


class SelfAttention(nn.Module):
    """Attention between all pairs of words; sequences are full, so there is no padding."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.hidden, size.hidden)
        self.key = nn.Linear(size.hidden, size.hidden)
        self.value = nn.Linear(size.hidden, size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(batch, length, self.heads, -1).transpose(1, 2)
        v = self.value(x).view(batch, length, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return cast(Tensor, self.out(y.transpose(1, 2).flatten(2)))


class BertBlock(nn.Module):
    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.attention = SelfAttention(size)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.up = nn.Linear(size.hidden, 4 * size.hidden)
        self.down = nn.Linear(4 * size.hidden, size.hidden)
        self.mlp_norm = nn.LayerNorm(size.hidden, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return cast(Tensor, self.mlp_norm(x + self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """tokens int64 [B, T] -> logits [B, T, V], with BERT's transform before a tied head.

    As in RoBERTa, there are no sentence embeddings and no next-sentence task.
    """

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden)
        self.embedding_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.layers = nn.ModuleList(BertBlock(size) for _ in range(size.layers))
        self.transform = nn.Linear(size.hidden, size.hidden)
        self.transform_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.head = nn.Linear(size.hidden, size.vocabulary)
        initialise(self, size.layers)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding_norm(self.embedding(tokens) + self.positions(positions))
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.transform_norm(F.gelu(self.transform(x)))))


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedWords:
    """Make (tokens, targets), int64 [B, T] each; a target is IGNORED if no word is predicted."""

    windows: Windows
    mask_id: int
    device: torch.device

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        words = self.windows(index)
        rng = np.random.default_rng((self.windows.seed, index, PREDICTED_STREAM))
        predicted = rng.random(words.shape) < MASKED_SHARE
        # Mask at least one word; the mean over no words would be NaN.
        predicted[:, rng.integers(words.shape[1])] = True
        fate = rng.random(words.shape)
        random_words = rng.integers(0, self.mask_id, words.shape)
        tokens = np.where(predicted & (fate < 0.8), self.mask_id, words)
        tokens = np.where(predicted & (fate >= 0.9), random_words, tokens)
        targets = np.where(predicted, words, IGNORED)
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(targets).to(self.device)


def build_batches(size: TextSize, data: Data) -> MaskedWords:
    """Return batches of masked words with the size's vocabulary, whose last id is the mask's."""
    mask_id = size.vocabulary - 1
    windows = text_windows(
        data, vocabulary=mask_id, batch_size=size.batch_size, length=size.sequence
    )
    return MaskedWords(windows=windows, mask_id=mask_id, device=data.device)


# Base and large: the two sizes of the paper's section 3, with the WordPiece vocabulary of the
# released models.
SIZES = sizes_of(
    TextSize,
    """
    size  hidden layers heads vocabulary sequence batch_size on_gpu
    tiny      64      2     4        512       64          8      0
    17m      384      6     6      16000      128          8    256
    base     768     12    12      30522      512          4     64
    large   1024     24    16      30522      512          4     32
    """,
)

FAMILY = Family(
    name="bert",
    summary="masked language model: bidirectional attention, LayerNorm after the branch, GELU",
    sizes=SIZES,
    alone="17m",
    build_model=Bert,
    build_batches=build_batches,
    loss=token_loss,
)
