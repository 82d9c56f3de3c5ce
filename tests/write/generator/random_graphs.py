"""Random programs over the generator's ops: scalars[0] is a seed, scalars[1] their number."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    torch.sigmoid,
    torch.erf,
    torch.sin,
    torch.cos,
    lambda x: torch.exp(-x.abs()),
    lambda x: torch.log1p(x.abs()),
    lambda x: (x.square() + 0.5).sqrt(),
    lambda x: (x.square() + 0.5).rsqrt(),
    torch.relu,
    torch.nn.functional.silu,
    torch.nn.functional.gelu,
    torch.nn.functional.softplus,
    lambda x: x.clamp(-0.75, 1.25),
    lambda x: -x,
)
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.where(x > y, x, 0.5 * y),
    lambda x, y: x / (y.abs() + 1.0),
)
ROWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, -1),
    lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1),
    lambda x: x / (1.0 + x.abs().amax(-1, keepdim=True)),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=0.1),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: x + x.square().mean().sqrt(),
    lambda x: x.cumsum(-1) / x.shape[-1],
    lambda x: x.flip(-1),
    lambda x: torch.cat((x[..., 1:], x[..., :1]), dim=-1),
    lambda x: torch.nn.functional.pad(x, (1, 0))[..., :-1],
    lambda x: x.flatten().reshape(x.shape) * 0.5,
    lambda x: x + x[0],
    lambda x: x.tril(),
)
ENDS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    lambda x: x.sum(-1),
    lambda x: x.sum(0),
    lambda x: x.amax(-1),
    lambda x: x.mean((-1, -2)),
    lambda x: torch.logsumexp(x, -1),
    lambda x: x.transpose(-1, -2).contiguous(),
    lambda x: torch.var(x, -1, correction=0),
)


def programs(x: Tensor, y: Tensor, row: Tensor, scalars: Sequence[float]) -> tuple[Tensor, ...]:
    """Return the outputs of scalars[1] programs on x, y: [R, C] and row: [C].

    One more output reads all of them: no input may be without effect.
    """
    source = random.Random(int(scalars[0]))
    drawn = (_program(x, y, row, source) for _ in range(int(scalars[1])))
    return (*drawn, x + y * row)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, scalars: tuple[float, ...]
) -> tuple[Tensor, ...]:
    """What torch calls on cores; the scalar says whether it is causal."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return tuple(flash(query, key, value, 0.0, bool(scalars[0])))


def fused_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scalars: tuple[float, ...],
) -> tuple[Tensor, ...]:
    """Its gradients; the scalar says whether it is causal."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    given = (gradient, query, key, value, out, logsumexp)
    return tuple(flash(*given, 0.0, bool(scalars[0]), scale=0.125))


def masks(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor, ...]:
    """Products beside diagonals, and groups of a padded row: x [B, R, K], y [B, C, K]."""
    scores = x @ y.mT
    rows, columns = torch.arange(x.shape[1]).unsqueeze(1), torch.arange(y.shape[1])
    seen = (columns <= rows + 2) & (columns > rows - 40)
    odds = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)
    later = torch.where(columns >= rows - 3, scores * scores, 0.0)
    row = x.flatten(1)
    groups = torch.nn.functional.pad(row, (0, -row.shape[1] % 8)).unflatten(1, (-1, 8))
    scale = groups.abs().amax(-1, keepdim=True) + 1
    scaled = (groups / scale).flatten(1)[:, : row.shape[1]]
    return odds @ y, later @ y, later.mT @ x, scaled, scale.squeeze(-1)


def products(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor, ...]:
    """Products of every layout and of both dtypes: x [B, R, K], y [B, K, C]."""
    turned = x.mT.contiguous()
    halves = x.bfloat16().float() * 0.5
    low, high = torch.exp(0.1 * x), y.abs().sqrt()
    return (
        x @ y,
        (y.mT @ x.mT) * 0.25 + 1,
        x.flatten(0, 1).mT @ x.flatten(0, 1),
        torch.relu(low @ high) @ high.mT,
        (0.5 * turned).mT @ y,
        halves.bfloat16() @ y.bfloat16(),
    )


def windows(
    x: Tensor, weight: Tensor, grad: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """Return windows in steps over x: [B, C, S, S]; weight: [C, C, 3, 3]; grad: [B, C, T, T]."""
    most, places = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    gradients = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return (
        most,
        places,
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.conv2d(x, weight, stride=2, padding=1),
        F.conv_transpose2d(grad, weight, stride=2, padding=1),
        gradients[0],
        gradients[1],
    )


def _program(x: Tensor, y: Tensor, row: Tensor, source: random.Random) -> Tensor:
    values = [x, y, row + torch.zeros_like(x)]
    for _ in range(source.randint(2, 6)):
        kind = source.random()
        if kind < 0.35:
            made = source.choice(UNARY)(source.choice(values))
        elif kind < 0.65:
            made = source.choice(BINARY)(source.choice(values), source.choice(values))
        else:
            made = source.choice(ROWS)(source.choice(values))
        values.append(made)
    return source.choice(ENDS)(values[-1] + 0.25 * x)


def convolutions(
    x: Tensor, weight: Tensor, grad: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """Convolutions in steps of 1, uneven and further apart, with their gradients.

    x is [B, C, H, W], weight [O, C, 3, 2], grad [B, O, H + 2, W - 1].
    """
    padding, dilation = [2, 0], [1, 1]
    return (
        F.conv2d(x, weight, padding=(2, 1), dilation=(2, 3)),
        F.conv2d(x, weight, stride=(1, 2), padding=(0, 1)),
        F.conv_transpose2d(grad, weight, padding=(2, 0), dilation=(2, 1)),
        *torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1, 1], padding, dilation, False, [0, 0], 1, [True, True, False]
        )[:2],
    )


def tied_embedding(
    words: Tensor, grad: Tensor, head: Tensor, scalars: Sequence[float]
) -> tuple[Tensor, ...]:
    """Return the gradient of an embedding whose weight is the head's too, and a count of words.

    words is [B, T] and may hold the padding word -1, grad [B, T, D], head [V, D].
    """
    mask = ((words >= 0) & (words < head.shape[0]) & (words != -1)).unsqueeze(-1)
    none = torch.zeros_like(head, dtype=grad.dtype)
    put = torch.ops.aten._unsafe_masked_index_put_accumulate(none, mask, [words], grad)
    twice = torch.zeros_like(none).index_put([words.clamp(min=0)], grad, accumulate=True)
    return head.to(grad.dtype) * 2 + put, twice + head, torch.relu(twice)
