"""Backward passes written out as torch formulas, without autograd: sources of honest kernels.

Each function has the name of its problem, or of that problem in fp32. bf16 inputs are computed in
fp32 and rounded once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 5


def _wide(*tensors):
    return tuple(one.float() for one in tensors)


def _narrow(like, *tensors):
    return tuple(one.to(like.dtype) for one in tensors)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Return a^T b, summed over a few rows at a time, from the last."""
    parts = list(zip(a.split(CHUNK), b.split(CHUNK), strict=True))[::-1]
    total = torch.zeros(a.shape[1], b.shape[1])
    for left, right in parts:
        total += torch.einsum("na,nb->ab", left, right)
    return total


def _shares(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.flip(-1).sum(-1, keepdim=True)


def _through_shares(p: Tensor, grad: Tensor) -> Tensor:
    return p * (grad - (p * grad).flip(-1).sum(-1, keepdim=True))


def weight_gradient(grad, x, scalars):
    wide, x_wide = _wide(grad, x)
    return _narrow(grad, _outer(wide, x_wide), wide.flip(0).cumsum(0)[-1])


def linear_residual_backward(grad, x, w, scalars):
    wide, x, w = _wide(grad, x, w)
    return _narrow(grad, torch.einsum("nm,mk->nk", wide, w), _outer(wide, x), wide.flip(0).sum(0))


def grouped_linear_backward(grad, x, w, scalars):
    wide, x, w = _wide(grad, x, w)
    dx = torch.stack([one @ other for one, other in zip(wide, w, strict=True)])
    dw = torch.stack([_outer(one, other) for one, other in zip(wide, x, strict=True)])
    return _narrow(grad, dx, dw)


def linear_low_rank_backward(grad, x, w, down, up, scalars):
    wide, x, w, down, up = _wide(grad, x, w, down, up)
    scale = scalars[0]
    low = scale * (wide @ up)
    dup = _outer(wide, scale * (x @ down.T))
    return _narrow(grad, wide @ w + low @ down, _outer(low, x), dup)


def linear_swiglu_backward(grad, x, gate, up, scalars):
    wide, x, gate, up = _wide(grad, x, gate, up)
    a, b = x @ gate.T, x @ up.T
    opened = 1 / (1 + torch.exp(-a))
    da, db = wide * b * opened * (1 + a * (1 - opened)), wide * a * opened
    return _narrow(grad, da @ gate + db @ up, _outer(da, x), _outer(db, x))


def norm_linear_backward(grad, x, weight, w, scalars):
    wide, x, weight, w = _wide(grad, x, weight, w)
    scale = (x.square().flip(-1).mean(-1, keepdim=True) + scalars[0]) ** -0.5
    seen = x * scale
    down = wide @ w
    along = (down * weight * seen).flip(-1).mean(-1, keepdim=True)
    dx = scale * (down * weight - seen * along)
    return _narrow(grad, dx, (down * seen).flip(0).sum(0), _outer(wide, seen * weight))


def _normed(grad, x, weight, eps, over):
    """Return the gradients of a normalisation over those dimensions of [B, C, S, S]."""
    centred = x - x.mean(over, keepdim=True)
    scale = 1 / torch.sqrt(centred.square().mean(over, keepdim=True) + eps)
    seen, down = centred * scale, grad * weight.view(-1, 1, 1)
    mean, along = down.mean(over, keepdim=True), (down * seen).mean(over, keepdim=True)
    every = (0, 2, 3)
    return scale * (down - mean - seen * along), (grad * seen).sum(every), grad.sum(every)


def batch_norm_backward(grad, x, weight, scalars):
    return _normed(grad, x, weight, scalars[0], (0, 2, 3))


def instance_norm_backward(grad, x, weight, scalars):
    return _normed(grad, x, weight, scalars[0], (2, 3))


def _patches(x: Tensor) -> Tensor:
    """Map [B, C, S, S] to [B S S, C 9]."""
    found = F.unfold(x, 3, padding=1)
    return found.transpose(1, 2).reshape(-1, found.shape[1])


def _rows(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def conv_scale_silu_backward(grad, x, weight, scale, shift, scalars):
    wide, x, weight, scale, shift = _wide(grad, x, weight, scale, shift)
    flat, patches = weight.flatten(1), _patches(x)
    y = patches @ flat.T
    z = y * scale + shift
    opened = torch.sigmoid(z)
    dz = _rows(wide) * opened * (1 + z * torch.sigmoid(-z))
    dy = dz * scale
    spread = (dy @ flat).view(x.shape[0], -1, flat.shape[1]).transpose(1, 2)
    dx = F.fold(spread.contiguous(), x.shape[2:], 3, padding=1)
    dw = _outer(dy, patches).view_as(weight)
    return _narrow(grad, dx, dw, (dz * y).sum(0), dz.flip(0).sum(0))


def _pointwise(kept, x, weight):
    dx = torch.einsum("boyz,oc->bcyz", kept, weight.flatten(1))
    return dx, _outer(_rows(kept), _rows(x)).view_as(weight)


def pointwise_residual_backward(grad, x, weight, residual, scalars):
    y = torch.einsum("bcyz,oc->boyz", x, weight.flatten(1)) + residual
    kept = grad * (y > 0)
    return (*_pointwise(kept, x, weight), kept)


def pointwise_residual_bf16_backward(grad, y, x, weight, scalars):
    kept, x, weight = _wide(grad * (y > 0), x, weight)
    return _narrow(grad, *_pointwise(kept, x, weight), kept)


def _attended(grad, q, k, v, bias, cap=0.0):
    """Process a few query rows at a time; dk and dv are summed from the last rows to the first."""
    wide, q, k, v = _wide(grad, q, k, v)
    scale, dq = q.shape[-1] ** -0.5, torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in reversed(range(0, q.shape[-2], CHUNK)):
        rows = slice(start, start + CHUNK)
        scores = torch.einsum("bhid,bhjd->bhij", q[..., rows, :], k) * scale
        bent = cap * torch.tanh(scores / cap) if cap else scores
        p = _shares(bent + bias[..., rows, :])
        ds = _through_shares(p, torch.einsum("bhid,bhjd->bhij", wide[..., rows, :], v)) * scale
        ds = ds * (1 - (bent / cap).square()) if cap else ds
        dq[..., rows, :] = ds @ k
        dk += ds.transpose(-1, -2) @ q[..., rows, :]
        dv += p.transpose(-1, -2) @ wide[..., rows, :]
    return _narrow(grad, dq, dk, dv)


def _future(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def attention_capped_backward(grad, q, k, v, scalars):
    return _attended(grad, q, k, v, _future(q.shape[-2]), scalars[0])


def attention_packed_backward(grad, q, k, v, document, scalars):
    owner = document.sort(dim=-1).values
    other = (owner[:, :, None] != owner[:, None, :]).unsqueeze(1)
    bias = _future(q.shape[-2]).expand_as(other).masked_fill(other, float("-inf"))
    return _attended(grad, q, k, v, bias)


def masked_softmax_backward(grad, x, mask, scalars):
    wide, x = _wide(grad, x)
    allowed = mask == 1
    allowed[:, 0] = True
    return _narrow(grad, _through_shares(_shares(x.where(allowed, float("-inf"))), wide))


def capped_softmax_backward(grad, x, scalars):
    wide, x = _wide(grad, x)
    bent = torch.tanh(x / scalars[0])
    slope = 1 / torch.cosh((x / scalars[0]).clamp(-40, 40)).square()
    return _narrow(grad, _through_shares(_shares(scalars[0] * bent), wide) * slope)


def binary_cross_entropy_backward(grad, logits, targets, scalars):
    return ((1 / (1 + torch.exp(-logits)) - targets) * (grad / logits.shape[-1]).unsqueeze(-1),)


def huber_backward(grad, x, target, scalars):
    gap = x - target
    return (
        torch.minimum(gap.abs(), gap.new_tensor(scalars[0]))
        * gap.sign()
        * grad[:, None]
        / x.shape[-1],
    )


def mean_squared_error_backward(grad, x, target, scalars):
    slope = (x - target) * (2 * grad / x.shape[-1]).unsqueeze(-1)
    return slope, -slope


def preference_backward(grad, chosen, rejected, scalars):
    slope = -scalars[0] * grad / (1 + torch.exp(scalars[0] * (chosen - rejected)))
    return slope, -slope


def log_sum_exp_backward(grad, x, scalars):
    return (_shares(x) * grad.unsqueeze(-1),)


def cumulative_sum_backward(grad, scalars):
    upper = torch.ones(grad.shape[-1], grad.shape[-1]).tril()
    return (torch.einsum("ri,ij->rj", grad, upper),)


def cumulative_log_sum_backward(grad, x, scalars):
    """Compute all pairs of positions at once; each position scales its sums by its own maximum."""
    top = x.cummax(-1).values
    earlier = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril()
    gap = (x.unsqueeze(1) - top.unsqueeze(2)).masked_fill(~earlier, float("-inf"))
    powers = torch.exp(gap)
    return ((powers * (grad / powers.sum(-1)).unsqueeze(-1)).sum(1),)


def discounted_returns_backward(grad, scalars):
    found, state = torch.empty_like(grad), torch.zeros_like(grad[:, 0])
    for step in range(grad.shape[-1]):
        state = grad[:, step] + scalars[0] * state
        found[:, step] = state
    return (found,)


def balance_loss_backward(grad, logits, scalars):
    p = _shares(logits)
    counts = torch.bincount(logits.argmax(-1), minlength=logits.shape[-1])
    along = grad * counts * (logits.shape[-1] / len(logits) ** 2)
    return (_through_shares(p, along.expand_as(p)),)


def gelu_tanh_backward(grad, x, scalars):
    u = 0.7978845608028654 * x * (1 + 0.044715 * x * x)
    opened = 1 / (1 + torch.exp(-2 * u))
    slope = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
    return (grad * (opened + 2 * x * opened * (1 - opened) * slope),)


def silu_backward(grad, x, scalars):
    wide, x = _wide(grad, x)
    opened = 0.5 * (1 + torch.tanh(0.5 * x))
    return _narrow(grad, wide * opened * (1 + x * (1 - opened)))


def mish_backward(grad, x, scalars):
    soft = torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))
    bent = torch.tanh(soft)
    return (grad * (bent + x * torch.sigmoid(x) / torch.cosh(soft.clamp(max=40)).square()),)


def glu_backward(grad, gate, up, scalars):
    opened = 1 / (1 + torch.exp(-gate))
    return grad * up * opened / (1 + torch.exp(gate)), grad * opened
