"""Torch's fused attention on cores, in plain operations: a region of a workload calls it by name.

Shapes: [batch, heads, length, width]; the logarithm of each row's sum is [batch, heads, length].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def decompositions_of_attention() -> Mapping[Any, Callable[..., Any]]:
    """Return the two ops' decompositions, for make_fx."""
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
    }


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the output, and the logarithm of each row's sum of exponentials in fp32."""
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    scores = _scores(query, key, is_causal, attn_mask, scale)
    most = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - most)
    total = powers.sum(-1, keepdim=True)
    output = torch.matmul(powers / total, value.float()).to(query.dtype)
    return output, (most + torch.log(total)).squeeze(-1)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value (Dao et al., "FlashAttention", 2022, app. B)."""
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    given = grad_out.float()
    shares = torch.exp(
        _scores(query, key, is_causal, attn_mask, scale) - logsumexp.float().unsqueeze(-1)
    )
    of_value = torch.matmul(shares.transpose(-2, -1), given)
    of_shares = torch.matmul(given, value.float().transpose(-2, -1))
    moved = (given * out.float()).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - moved) * _factor(query, scale)
    of_query = torch.matmul(of_scores, key.float())
    of_key = torch.matmul(of_scores.transpose(-2, -1), query.float())
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> Tensor:
    """Return the scaled and masked products of rows in fp32."""
    factor = _factor(query, scale)
    scores: Tensor = torch.matmul(query.float(), key.float().transpose(-2, -1)) * factor
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        scores = torch.where(seen, scores, float("-inf"))
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, scores, float("-inf"))
    return scores + attn_mask


def _factor(query: Tensor, scale: float | None) -> Any:
    return 1.0 / torch.sym_sqrt(query.shape[-1]) if scale is None else scale
