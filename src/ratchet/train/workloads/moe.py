"""Llama with top-k routed experts instead of each MLP (Shazeer et al. 2017; Mixtral, OLMoE).

Every expert takes at most `capacity` token copies, as in GShard (Lepikhin et al. 2020, section 2.2)
and Switch (Fedus et al. 2021). Shapes are therefore static, the experts are one batched matrix
product, and torch.compile captures the step without a graph break. Copies beyond the capacity are
dropped: they keep their residual and get no expert. First choices are served before second ones.

Shapes: B batch, T sequence, S = B * T tokens, H hidden, E experts, C capacity, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.family import Family, next_token_batches, sizes_of
from ratchet.train.workloads.llama import Attention, Llama, LlamaSize, RMSNorm

BALANCE_WEIGHT = 0.01  # Weight of the load-balancing loss: Fedus et al. 2021, section 2.2.


@dataclass(frozen=True, kw_only=True, slots=True)
class MoESize(LlamaSize):
    """The dimensions of one mixture of experts; `intermediate` is that of one expert."""

    experts: int
    chosen: int
    capacity_factor: float = 1.25

    def capacity(self, tokens: int) -> int:
        """Return the maximum number of copies, out of `tokens` tokens, that one expert takes."""
        return math.ceil(self.capacity_factor * self.chosen * tokens / self.experts)


class Experts(nn.Module):
    """E SwiGLU networks as batched matrix products: [E, C, H] -> [E, C, H]."""

    def __init__(self, size: MoESize) -> None:
        super().__init__()
        narrow = (size.experts, size.hidden, size.intermediate)
        self.gate = nn.Parameter(torch.empty(narrow).normal_(std=0.02))
        self.up = nn.Parameter(torch.empty(narrow).normal_(std=0.02))
        scale = 0.02 * (2 * size.layers) ** -0.5
        wide = (size.experts, size.intermediate, size.hidden)
        self.down = nn.Parameter(torch.empty(wide).normal_(std=scale))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up)
        return torch.bmm(hidden, self.down)


class RoutedExperts(nn.Module):
    """x [B, T, H] -> (y [B, T, H], balance loss): each token's chosen experts, weighted."""

    def __init__(self, size: MoESize) -> None:
        super().__init__()
        self.size = size
        self.router = nn.Linear(size.hidden, size.experts, bias=False)
        self.experts = Experts(size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, x.shape[-1])
        probabilities = F.softmax(self.router(tokens).float(), dim=-1)
        weights, chosen = probabilities.topk(self.size.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        sources, slots, kept = self._assign(chosen, tokens.shape[0])
        # Empty slots and dropped copies read the row of zeros after the last token.
        filled = F.pad(tokens, (0, 0, 0, 1)).index_select(0, sources)
        out = self.experts(filled.view(self.size.experts, -1, tokens.shape[-1]))
        copies = out.flatten(0, 1).index_select(0, slots).view(*chosen.shape, -1)
        y = (copies * (weights * kept).to(copies.dtype).unsqueeze(-1)).sum(dim=1)
        return y.view_as(x), balance_loss(probabilities, chosen)

    def _assign(self, chosen: Tensor, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Assign each slot its token and each copy its slot; mark the copies that found room.

        chosen [S, K] -> sources int64 [E * C], slots int64 [S * K], kept bool [S, K].
        """
        capacity = self.size.capacity(tokens)
        # Row k * S + s is token s's k-th choice, so the running count serves first choices first.
        experts = chosen.t().reshape(-1)
        order = F.one_hot(experts, self.size.experts).cumsum(dim=0) - 1
        order = order.gather(1, experts.unsqueeze(1)).squeeze(1)
        kept = order < capacity
        nowhere = self.size.experts * capacity
        slots = torch.where(kept, experts * capacity + order, nowhere)
        owners = torch.arange(tokens, device=chosen.device).repeat(self.size.chosen)
        sources = torch.full((nowhere + 1,), tokens, device=chosen.device)
        sources = sources.scatter(0, slots, owners)[:nowhere]
        slots = torch.where(kept, slots, 0).view(self.size.chosen, tokens).t().reshape(-1)
        return sources, slots, kept.view(self.size.chosen, tokens).t()


def balance_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return E * sum over experts of (share of choices) * (mean probability); 1 when balanced.

    Fedus et al. 2021, equation 4, with all K choices counted.
    """
    experts = probabilities.shape[-1]
    share = F.one_hot(chosen, experts).float().mean(dim=(0, 1))
    return experts * (share * probabilities.mean(dim=0)).sum()


class MoEBlock(nn.Module):
    def __init__(self, size: MoESize) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(size.hidden, size.norm_eps)
        self.attention = Attention(size)
        self.mlp_norm = RMSNorm(size.hidden, size.norm_eps)
        self.mlp = RoutedExperts(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y, balance = self.mlp(self.mlp_norm(x))
        return x + y, balance


class MoE(Llama):
    """tokens int64 [B, T] -> (logits [B, T, V], mean balance loss of the layers)."""

    block = MoEBlock

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        balances = []
        for layer in self.layers:
            x, balance = layer(x, cos, sin)
            balances.append(balance)
        return self.head(self.norm(x)), torch.stack(balances).mean()


def routed_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the next token plus the weighted balance loss."""
    tokens, targets = batch
    logits, balance = model(tokens)
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))
    return cast(Tensor, loss + BALANCE_WEIGHT * balance)


# OLMoE-1B-7B (Muennighoff et al. 2024, table 1) and Mixtral 8x7B (Jiang et al. 2024, table 1).
SIZES = sizes_of(
    MoESize,
    """
size  hidden layers heads kv_heads intermediate vocabulary sequence batch_size on_gpu experts chosen
tiny      64      2     4        2           96        512       64          8      0       4      2
42m      384      4     6        2          768      16000      256          2    128       8      2
1b-7b   2048     16    16       16         1024      50304     2048          1      4      64      8
8x7b    4096     32    32        8        14336      32000     2048          1      4       8      2
    """,
)
SIZES["8x7b"] = replace(SIZES["8x7b"], rope_base=1_000_000.0)

FAMILY = Family(
    name="moe",
    summary="causal language model: Llama's attention, top-k routed SwiGLU experts",
    sizes=SIZES,
    alone="42m",
    build_model=MoE,
    build_batches=next_token_batches,
    loss=routed_loss,
)
