"""GPT-2: learned positions, LayerNorm, GELU, tied embeddings (Radford et al. 2019).

Shapes: B batch, T sequence, H hidden, N heads, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.family import (
    Family,
    TextSize,
    branch_end,
    initialise,
    next_token_batches,
    sizes_of,
    token_loss,
)


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

    def __init__(self, size: TextSize) -> None:
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


# From 124m on: table 2 of the paper.
SIZES = sizes_of(
    TextSize,
    """
    size   hidden layers heads vocabulary sequence batch_size on_gpu
    tiny       64      2     4        512       64          8      0
    23m       384      6     6      32000      256          2    256
    124m      768     12    12      50257     1024          1     32
    355m     1024     24    16      50257     1024          1     16
    774m     1280     36    20      50257     1024          1      8
    1558m    1600     48    25      50257     1024          1      8
    """,
)

FAMILY = Family(
    name="gpt2",
    summary="causal language model: learned positions, LayerNorm, GELU, tied embeddings",
    sizes=SIZES,
    alone="23m",
    build_model=GPT2,
    build_batches=next_token_batches,
    loss=token_loss,
)
