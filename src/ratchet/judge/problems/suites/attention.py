"""Rotary embeddings and attention in the variants that training uses, with their gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    Scalars,
    gradient_of,
    in_bfloat16,
    paired,
    problem,
    real,
    sizes,
    uniform,
    whole,
    wide,
)

MODEST = (("shifted", "contiguous"), ("heavy_tailed", "heads"))
"""Distributions without large values, which would make each softmax pick a single key."""
CENTRED = (("positive", "contiguous"), ("heavy_tailed", "heads"))
"""Distributions for gradients in bf16. Keys that lie 8 off 0 would leave nothing of a gradient: the
rounded terms of a row no longer add up to 0, and torch's own dq is off by its own size."""
HEADS = sizes((1, 4, 32, 32), (2, 8, 256, 64), (4, 32, 4096, 128))
RAGGED = (2, 2, 37, 16)
ROTATED = sizes((1, 32, 4, 32), (2, 512, 16, 64), (4, 4096, 32, 128))
GROUPED = sizes((1, 4, 2, 32, 32), (2, 8, 2, 256, 64), (4, 32, 8, 4096, 128))


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def attention_full(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """q, k, v: [B, H, T, D]; every query sees every key."""
    return (_attend(q, k, v),)


def attention_causal(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


def attention_grouped(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Causal; several query heads share a key head (arXiv:2305.13245)."""
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),)


def attention_window(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Causal within the last scalars[0] keys (Longformer, Mistral)."""
    return (_attend(q, k, v, _window(q.shape[-2], int(scalars[0]), q.device)),)


def attention_packed(
    q: Tensor, k: Tensor, v: Tensor, document: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Causal within documents packed into one sequence; `document` [B, T] is sorted here."""
    owner = document.sort(dim=-1).values
    same = owner.unsqueeze(-1) == owner.unsqueeze(-2)
    causal = torch.ones_like(same[0]).tril()
    return (_attend(q, k, v, (same & causal).unsqueeze(1)),)


def attention_alibi(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Causal with a linear bias for each head (arXiv:2108.12409)."""
    heads, length = q.shape[1], q.shape[-2]
    place = torch.arange(length, device=q.device)
    distance = place.unsqueeze(0) - place.unsqueeze(1)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=q.device) / heads)
    exact = torch.promote_types(q.dtype, torch.float32)
    bias = (slopes.to(exact).view(-1, 1, 1) * distance).to(q.dtype)
    return (_attend(q, k, v, bias.masked_fill(distance > 0, float("-inf"))),)


def attention_capped(q: Tensor, k: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Causal with scores cap tanh(s / cap), cap scalars[0] (Gemma 2)."""
    scores = wide(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scalars[0] * torch.tanh(scores / scalars[0])
    future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    return (F.softmax(scores.masked_fill(future, float("-inf")), dim=-1).to(v.dtype) @ v,)


def _window(length: int, width: int, device: torch.device) -> Tensor:
    every = torch.ones(length, length, dtype=torch.bool, device=device)
    return every.tril() & every.triu(1 - width)


def rope_half(x: Tensor, angles: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """x: [B, T, H, D], angles: [T, D / 2]; pairs are d and d + D / 2 (arXiv:2104.09864)."""
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return (torch.cat(turned, dim=-1).to(x.dtype),)


def rope_interleaved(x: Tensor, angles: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The same with pairs 2 i and 2 i + 1, as in the paper."""
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return (turned.flatten(-2).to(x.dtype),)


attention_full_backward = gradient_of(attention_full, inputs=(0, 1, 2))
attention_causal_backward = gradient_of(attention_causal, inputs=(0, 1, 2))
attention_grouped_backward = gradient_of(attention_grouped, inputs=(0, 1, 2))
attention_window_backward = gradient_of(attention_window, inputs=(0, 1, 2))
attention_packed_backward = gradient_of(attention_packed, inputs=(0, 1, 2))
attention_alibi_backward = gradient_of(attention_alibi, inputs=(0, 1, 2))
attention_capped_backward = gradient_of(attention_capped, inputs=(0, 1, 2))


def rope_half_backward(grad: Tensor, angles: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The rotation back, which is the gradient of a rotation."""
    return rope_half(grad, -angles, scalars)


def rope_interleaved_backward(grad: Tensor, angles: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return rope_interleaved(grad, -angles, scalars)


_attended = partial(
    Form, module=__name__, libraries=("matmul",), variations=MODEST, varied=(0, 1, 2)
)


def _heads(name: str, *scalars: float) -> Form:
    def make(*given: int) -> tuple[TensorSpec, ...]:
        return (real(*given),) * 3

    return _attended(name=name, make=make, sizes=HEADS, ragged=RAGGED, scalars=scalars)


def _packed(batch: int, heads: int, length: int, width: int) -> tuple[TensorSpec, ...]:
    return (*(real(batch, heads, length, width),) * 3, whole(batch, length, below=3))


def _grouped(
    batch: int, heads: int, shared: int, length: int, width: int
) -> tuple[TensorSpec, ...]:
    kv = real(batch, shared, length, width)
    return (real(batch, heads, length, width), kv, kv)


def _rotated(batch: int, length: int, heads: int, width: int) -> tuple[TensorSpec, ...]:
    angles = uniform(length, width // 2, low=0.0, high=6.28)
    return (real(batch, length, heads, width, dtype="bfloat16"), angles)


def problems() -> tuple[Problem, ...]:
    """Return every variant, forward and backward."""
    forms = [_heads("attention_full"), _heads("attention_causal"), _heads("attention_alibi")]
    forms.append(_heads("attention_window", 16.0))
    forms.append(_attended(name="attention_packed", make=_packed, sizes=HEADS, ragged=RAGGED))
    forms.append(_heads("attention_capped", 20.0))
    ragged = (2, 6, 3, 37, 16)
    forms.append(_attended(name="attention_grouped", make=_grouped, sizes=GROUPED, ragged=ragged))
    low = [in_bfloat16(one) for one in paired(forms)]
    low[1::2] = [replace(one, variations=CENTRED) for one in low[1::2]]
    rotary = partial(Form, module=__name__, make=_rotated, ragged=(2, 7, 3, 18), sizes=ROTATED)
    turned = paired([rotary(name="rope_half"), rotary(name="rope_interleaved")], kept=(1,))
    return tuple(map(problem, (*paired(forms), *low, *turned)))
