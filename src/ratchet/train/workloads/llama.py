"""Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023).

Shapes: B batch, T sequence, H hidden, N heads, K key-value heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaSize(TextSize):
    """The dimensions of one Llama and of its batches."""

    kv_heads: int
    intermediate: int
    tied: bool = False
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in fp32 (Zhang and Sennrich 2019)."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).type_as(x)


def rope_tables(length: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, fp32 [T, D], of RoPE's angles (Su et al. 2021), the same in each half."""
    frequencies = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x: Tensor) -> Tensor:
    """Map (a, b) to (-b, a) over the two halves of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, N, T, D] by its positions."""
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention; K key-value heads serve N query heads (Ainslie et al. 2023)."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.head_dim = size.head_dim
        self.grouped = size.heads != size.kv_heads
        self.q_proj = nn.Linear(size.hidden, size.heads * size.head_dim, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.o_proj = branch_end(size.heads * size.head_dim, size.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return cast(Tensor, self.o_proj(y.transpose(1, 2).reshape(batch, length, -1)))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = branch_end(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class LlamaBlock(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(size.hidden, size.norm_eps)
        self.attention = Attention(size)
        self.mlp_norm = RMSNorm(size.hidden, size.norm_eps)
        self.mlp = SwiGLU(size.hidden, size.intermediate)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return cast(Tensor, x + self.mlp(self.mlp_norm(x)))


class Llama(nn.Module):
    """tokens int64 [B, T] -> logits [B, T, V]."""

    block: Callable[..., nn.Module] = LlamaBlock
    cos: Tensor
    sin: Tensor

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(self.block(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden, size.norm_eps)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        cos, sin = rope_tables(size.sequence, size.head_dim, size.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        initialise(self, size.layers)
        if size.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


# 1b and 8b: dimensions from Meta's published config.json files of Llama 3.2 1B and Llama 3.1 8B,
# without the RoPE scaling that those use beyond 8,192 positions.
SIZES = sizes_of(
    LlamaSize,
    """
size hidden layers heads kv_heads intermediate vocabulary sequence batch_size on_gpu rope_base tied
tiny     64      2     4        2          176        512       64          8      0     10000    0
8m      256      6     8        4          704       8000      256          2    256     10000    0
60m     512      6     8        8         2048      32000      512          2     64     10000    0
1b     2048     16    32        8         8192     128256     2048          1      4    500000    1
8b     4096     32    32        8        14336     128256     2048          1      4    500000    0
    """,
)

FAMILY = Family(
    name="llama",
    summary="causal language model: RMSNorm, RoPE, grouped-query attention, SwiGLU",
    sizes=SIZES,
    alone="60m",
    build_model=Llama,
    build_batches=next_token_batches,
    loss=token_loss,
)
