"""Attention without whole scores: `ratchet::attention(q, k, v, causal, scale) -> (o, lse)`.

    lse = log sum exp(scale q k^T),  o = exp(scale q k^T - lse) v

q is [B, H, T, D], k and v are [B, G, S, D] where G divides H (grouped queries); with `causal` query
t sees keys 0..t. o has q's dtype and lies in memory as [B, T, H, D], so that
`o.transpose(1, 2).reshape(B, T, H * D)` copies nothing; lse is fp32 and carries no gradient.
The kernel takes fp32 and bf16, D up to 256, scale > 0; anything else is the torch composite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.custom_op import Given, declare_op, features_last
from ratchet.judge.kernels.library.sources import LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped import attention as reference
from ratchet.judge.problems.suites.shipped.attention import ENTRIES, attention_problems


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return attention's output [B, H, T, D] in q's dtype; the default `scale` is 1/sqrt(D)."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    output: Tensor = torch.ops.ratchet.attention(q, k, v, causal, factor)[0]
    return output


def _head_tensor(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an empty [B, H, T, D] tensor like `like`, with memory in the order [B, T, H, D]."""
    _, heads, rows, features = like.shape
    stride = (rows * heads * features, features, heads * features, 1)
    return torch.empty_strided(like.shape, stride, dtype=dtype, device=like.device)


def _outputs(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    fits = q.dim() == k.dim() == 4 and k.shape == v.shape and k.shape[1] > 0 and k.shape[2] > 0
    if not fits or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise KernelError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not match: "
            "give q [B, H, T, D], k and v [B, G, S, D] with S > 0 and G a divisor of H"
        )
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _head_tensor(q, q.dtype), torch.empty(q.shape[:3], dtype=wide, device=q.device)


def _inputs(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Given:
    return tuple(features_last(one.to(q.dtype)) for one in (q, k, v)), (float(causal), scale)


def _backward_inputs(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *scalars: float
) -> Given:
    heads = (features_last(one.to(q.dtype)) for one in (grad, q, k, v, o))
    return (*heads, lse.contiguous()), (float(scalars[0]), scalars[1])


def _gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, ...]:
    return tuple(_head_tensor(one, q.dtype) for one in (q, k, v))


def _autocast(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> object:
    """Compute in autocast's dtype, as torch's scaled_dot_product_attention does."""
    device = q.device.type
    dtype = torch.get_autocast_dtype(device)
    lower = tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in (q, k, v))
    with torch.autocast(device, enabled=False):
        return torch.ops.ratchet.attention(*lower, causal, scale)


declare_op(
    "attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, float scale)"
    " -> (Tensor dq, Tensor dk, Tensor dv)",
    entry="attention_backward",
    inputs=_backward_inputs,
    outputs=_gradients,
    reference=reference.attention_backward,
)
declare_op(
    "attention",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor o, Tensor lse)",
    entry="attention_forward",
    inputs=_inputs,
    outputs=_outputs,
    reference=reference.attention_forward,
    derivative="attention_backward",
)
for _key in ("AutocastCPU", "AutocastCUDA"):
    torch.library.impl("ratchet::attention", _key, _autocast)

ATTENTION = LibraryKernel(
    name="attention",
    module=__name__,
    problems=attention_problems,
    summary="attention, causal or full, with grouped queries, in blocks that stay in cache",
    source_of_idea="FlashAttention-2, arXiv:2307.08691; online softmax, arXiv:1805.02867",
    variants=(
        Variant(language="cpp", file="attention_forward", entries=("attention_forward",)),
        Variant(language="cpp", file="attention_backward", entries=("attention_backward",)),
        Variant(language="triton", file="attention", entries=ENTRIES["attention"]),
    ),
    acts_on=("attention",),
    examples={
        "attention": OpExample(
            arguments="x(2, 4, 24, 16), x(2, 2, 24, 16), x(2, 2, 24, 16), True, 0.25",
            expected="F.scaled_dot_product_attention("
            "*a[:3], is_causal=a[3], scale=a[4], enable_gqa=True)",
            tolerance=2e-2,
        ),
    },
)
