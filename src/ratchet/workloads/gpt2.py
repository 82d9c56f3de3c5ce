"""GPT-2: learned positions, LayerNorm, GELU, tied embeddings (Radford et al. 2019).

Shapes: B batch, T sequence, H hidden, N heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.workloads.family import Data, Family, branch_end, initialise
from ratchet.workloads.llama import next_token_loss
from ratchet.workloads.windows import next_token_batches
from ratchet.workloads.workload import BatchFunction


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Size:
    """The dimensions of one GPT-2 and of its batches."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch_size: int


class CausalAttention(nn.Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = branch_end(size.hidden, size.hidden, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return cast(Tensor, self.out(y.transpose(1, 2).reshape(batch, length, hidden)))


class GPT2Block(nn.Module):
    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.hidden)
        self.attention = CausalAttention(size)
        self.mlp_norm = nn.LayerNorm(size.hidden)
        self.up = nn.Linear(size.hidden, 4 * size.hidden)
        self.down = branch_end(4 * size.hidden, size.hidden, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")
        return cast(Tensor, x + self.down(hidden))


class GPT2(nn.Module):
    """tokens int64 [B, T] -> logits [B, T, V]. Dropout is 0, as in current pretraining."""

    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden)
        self.layers = nn.ModuleList(GPT2Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        initialise(self, size.layers)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


def build_batches(size: GPT2Size, data: Data) -> BatchFunction:
    return next_token_batches(
        data,
        vocabulary=size.vocabulary,
        batch_size=size.batch_size,
        sequence=size.sequence,
    )


def _published(hidden: int, layers: int, heads: int) -> GPT2Size:
    """Return a size from the paper's table 2, with one sequence per batch."""
    return GPT2Size(
        hidden=hidden,
        layers=layers,
        heads=heads,
        vocabulary=50_257,
        sequence=1024,
        batch_size=1,
    )


SIZES = {
    "tiny": GPT2Size(hidden=64, layers=2, heads=4, vocabulary=512, sequence=64, batch_size=8),
    "23m": GPT2Size(hidden=384, layers=6, heads=6, vocabulary=32_000, sequence=256, batch_size=2),
    "124m": _published(768, 12, 12),
    "355m": _published(1024, 24, 16),
    "774m": _published(1280, 36, 20),
    "1558m": _published(1600, 48, 25),
}

FAMILY = Family(
    name="gpt2",
    summary="causal language model: learned positions, LayerNorm, GELU, tied embeddings",
    sizes=SIZES,
    alone="23m",
    build_model=GPT2,
    build_batches=build_batches,
    loss=next_token_loss,
)
