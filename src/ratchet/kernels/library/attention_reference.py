"""`ratchet::attention` in plain torch: the judge's reference and the op's composite.

With float64 inputs everything is float64. Otherwise scores and softmax are fp32, and the operands
of each product are rounded to the inputs' dtype, as flash attention rounds them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, scalars: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """(o [B, H, T, D] in q's dtype, lse [B, H, T]) of q [B, H, T, D], k and v [B, G, S, D].

    `scalars` are causal (0 or 1: query t sees keys 0..t) and the scale of the scores. G divides
    H: each key head serves H/G neighbouring query heads.
    """
    scores = _scores(q, k, scalars)
    lse = torch.logsumexp(scores, dim=-1)
    probability = torch.softmax(scores, dim=-1).to(q.dtype)
    return probability @ _for_heads(v, q).to(q.dtype), lse


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scalars: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) for the gradient of o, given the forward's o and lse."""
    wide = _wide(q)
    probability = torch.exp(_scores(q, k, scalars) - lse.to(wide).unsqueeze(-1))
    delta = (grad.to(wide) * o.to(wide)).sum(-1, keepdim=True)
    value_grad = grad.to(wide) @ _for_heads(v, q).to(wide).transpose(-1, -2)
    score_grad = (probability * (value_grad - delta)).to(q.dtype).to(wide)
    down = probability.to(q.dtype).to(wide).transpose(-1, -2) @ grad.to(wide)
    dq = score_grad @ _for_heads(k, q).to(wide) * scalars[1]
    dk = score_grad.transpose(-1, -2) @ q.to(wide) * scalars[1]
    return dq.to(q.dtype), _for_groups(dk, k).to(k.dtype), _for_groups(down, v).to(v.dtype)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _for_heads(keys: Tensor, q: Tensor) -> Tensor:
    group = q.shape[1] // keys.shape[1]
    return keys if group == 1 else keys.repeat_interleave(group, dim=1)


def _for_groups(grads: Tensor, keys: Tensor) -> Tensor:
    batch, groups, rows, features = keys.shape
    return grads.reshape(batch, groups, -1, rows, features).sum(2)


def _scores(q: Tensor, k: Tensor, scalars: tuple[float, float]) -> Tensor:
    causal, scale = scalars
    wide = _wide(q)
    scores = q.to(wide) @ _for_heads(k, q).to(q.dtype).to(wide).transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores
