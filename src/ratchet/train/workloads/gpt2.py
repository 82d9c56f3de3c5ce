"""GPT-2: learned positions, LayerNorm, GELU, tied embeddings (Radford et al. 2019).

Shapes: B batch, T sequence, H hidden, N heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.family import Family, branch_end, initialise
from ratchet.train.workloads.llama import build_batches, next_token_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Size:
    """The dimensions of one GPT-2 and of its batches."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int
    sequence: int
    batch_size: int


class FusedAttention(nn.Module):
    """Self-attention with one projection for query, key and value."""

    def __init__(self, hidden: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = branch_end(hidden, hidden, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return cast(Tensor, self.out(y.transpose(1, 2).reshape(batch, length, hidden)))


class GeluBlock(nn.Module):
    """LayerNorm, attention, LayerNorm and a GELU network (exact, or its tanh approximation)."""

    def __init__(
        self, hidden: int, heads: int, *, causal: bool, eps: float, approximate: str
    ) -> None:
        super().__init__()
        self.approximate = approximate
        self.attention_norm = nn.LayerNorm(hidden, eps=eps)
        self.attention = FusedAttention(hidden, heads, causal=causal)
        self.mlp_norm = nn.LayerNorm(hidden, eps=eps)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = branch_end(4 * hidden, hidden, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        hidden = F.gelu(self.up(self.mlp_norm(x)), approximate=self.approximate)
        return cast(Tensor, x + self.down(hidden))


class GPT2(nn.Module):
    """tokens int64 [B, T] -> logits [B, T, V]. Dropout is 0, as in current pretraining."""

    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden)
        self.layers = nn.ModuleList(
            GeluBlock(size.hidden, size.heads, causal=True, eps=1e-5, approximate="tanh")
            for _ in range(size.layers)
        )
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
    on_gpu={"23m": 256, "124m": 32, "355m": 16, "774m": 8, "1558m": 8},
    alone="23m",
    build_model=GPT2,
    build_batches=build_batches,
    loss=next_token_loss,
)
