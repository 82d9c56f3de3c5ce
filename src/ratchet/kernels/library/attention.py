"""Attention without whole scores: `ratchet::attention(q, k, v, causal, scale) -> (o, lse)`.

    lse = log sum exp(scale q k^T),  o = exp(scale q k^T - lse) v

q is [B, H, T, D], k and v are [B, G, S, D] where G divides H (grouped queries); with `causal` query
t sees keys 0..t. o has q's dtype and lies in memory as [B, T, H, D], so that
`o.transpose(1, 2).reshape(B, T, H * D)` copies nothing; lse is fp32 and carries no gradient.
The kernel takes fp32 and bf16, D up to 256, scale > 0; anything else is the torch composite.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.library import LibraryKernel, attention_reference, registry
from ratchet.kernels.library.registration import register
from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.kernels.library.sources import make_kernels
from ratchet.problems.problem import Case, Problem, TensorSpec
from ratchet.problems.tolerance import Tolerance

ENTRIES = ("attention_forward", "attention_backward")


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return attention's output [B, H, T, D] in q's dtype; the default `scale` is 1/sqrt(D)."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    output: Tensor = torch.ops.ratchet.attention(q, k, v, causal, factor)[0]
    return output


def _head_tensor(like: Tensor) -> Tensor:
    """Return an empty [B, H, T, D] tensor like `like`, with memory in the order [B, T, H, D]."""
    _, heads, rows, features = like.shape
    stride = (rows * heads * features, features, heads * features, 1)
    return torch.empty_strided(like.shape, stride, dtype=like.dtype, device=like.device)


def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    _check(q, k, v)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _head_tensor(q), torch.empty(q.shape[:3], dtype=dtype, device=q.device)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    fits = q.dim() == k.dim() == 4 and k.shape == v.shape and k.shape[1] > 0 and k.shape[2] > 0
    if not fits or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise KernelError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not match: "
            "give q [B, H, T, D], k and v [B, G, S, D] with S > 0 and G a divisor of H"
        )


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `tensor` in `dtype` with contiguous features, the kernel's only requirement."""
    tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    o, lse = _fake(q, k, v, causal, scale)
    inputs = (_rows(q, q.dtype), _rows(k, q.dtype), _rows(v, q.dtype))
    if not registry.call(ENTRIES[0], (*inputs, o, lse), (float(causal), scale)):
        computed = attention_reference.attention_forward(*inputs, (float(causal), scale))
        o.copy_(computed[0])
        lse.copy_(computed[1])
    return o, lse


def _backward_fake(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _head_tensor(q), _head_tensor(k), _head_tensor(v)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads = (_rows(q, q.dtype), _rows(k, q.dtype), _rows(v, q.dtype))
    inputs = (_rows(grad, q.dtype), *heads, _rows(o, q.dtype), lse.contiguous())
    dq, dk, dv = (_head_tensor(tensor) for tensor in heads)
    if not registry.call(ENTRIES[1], (*inputs, dq, dk, dv), (float(causal), scale)):
        computed = attention_reference.attention_backward(*inputs, (float(causal), scale))
        for mine, theirs in zip((dq, dk, dv), computed, strict=True):
            mine.copy_(theirs)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output)


def _differentiate(
    ctx: Any, grad: Tensor, _: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, None, None]:
    saved = ctx.saved_tensors
    grads = torch.ops.ratchet.attention_backward(grad, *saved, ctx.causal, ctx.scale)
    return (*grads, None, None)


def _autocast(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Any:
    """Compute in autocast's dtype, as torch's scaled_dot_product_attention does."""
    dtype = torch.get_autocast_dtype("cpu")
    lower = tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in (q, k, v))
    with torch.autocast("cpu", enabled=False):
        return torch.ops.ratchet.attention(*lower, causal, scale)


register(
    "attention",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
    run=_forward,
    fake=_fake,
    setup_context=_save,
    backward=_differentiate,
)
register(
    "attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, float scale)"
    " -> (Tensor, Tensor, Tensor)",
    run=_backward,
    fake=_backward_fake,
)
torch.library.impl("ratchet::attention", "AutocastCPU", _autocast)


def kernels(isa: str) -> tuple[Kernel, ...]:
    """Return forward and backward for `isa`; each takes bf16 and fp32."""
    return tuple(
        kernel
        for entry in ENTRIES
        for kernel in make_kernels("attention", f"{entry}.cpp", (entry,), isa)
    )


def problems(shapes: WorkloadShapes, *, causal: bool = True) -> tuple[Problem, ...]:
    """Return forward and backward at the workload's heads, with small cases of every kind."""
    return tuple(
        Problem(
            name=entry,
            reference=f"ratchet.kernels.library.attention_reference:{entry}",
            cases=_cases(shapes, causal, entry),
            tolerance=_tolerance(shapes.dtype, entry),
        )
        for entry in ENTRIES
    )


def _tolerance(dtype: str, entry: str) -> Tolerance:
    """Return the default, except for fp32 gradients: another order of summing a score over D moves
    a probability by several ulp, and few queries do not average that out."""
    return Tolerance(ulps=8.0) if dtype == "float32" and entry == ENTRIES[1] else Tolerance()


def _cases(shapes: WorkloadShapes, causal: bool, entry: str) -> tuple[Case, ...]:
    """Return the timed case, both kinds of mask with ragged sizes, and unusual values."""
    timed = (
        shapes.batch,
        shapes.heads,
        shapes.kv_heads,
        shapes.sequence,
        shapes.sequence,
        shapes.head_dim,
    )
    cases = [_case("timed", entry, timed, shapes.dtype, causal, timed=True)]
    for name, sizes, distribution, mask in (
        ("causal_ragged", (2, 2, 2, 77, 77, 64), "normal", True),
        ("full_ragged", (1, 3, 3, 65, 129, 64), "normal", False),
        ("grouped", (2, 6, 2, 33, 33, 40), "normal", True),
        ("one_query", (4, 8, 2, 1, 70, 32), "normal", False),
        ("zeros", (1, 2, 2, 48, 48, 64), "zeros", True),
        ("tiny", (1, 2, 2, 48, 48, 64), "tiny", True),
        ("shifted", (1, 2, 2, 70, 70, 64), "shifted", True),
        ("heavy_tailed", (1, 2, 2, 70, 70, 64), "heavy_tailed", True),
    ):
        cases.append(_case(name, entry, sizes, shapes.dtype, mask, distribution=distribution))
    hidden = (3, 4, 2, 100, 150, 96)
    cases.append(_case("hidden", entry, hidden, shapes.dtype, True, hidden=True))
    return tuple(cases)


def _case(
    name: str,
    entry: str,
    sizes: tuple[int, int, int, int, int, int],
    dtype: str,
    causal: bool,
    *,
    distribution: str = "normal",
    timed: bool = False,
    hidden: bool = False,
) -> Case:
    batch, heads, groups, queries, keys, features = sizes
    layout = "heads" if name != "full_ragged" else "strided"

    backward = entry == ENTRIES[1]
    # With heavy-tailed q and k one key has all the weight, and no separately drawn lse fits.
    score_distribution = "normal" if backward and distribution == "heavy_tailed" else distribution

    def spec(rows: int, count: int, values: str) -> TensorSpec:
        shape = (batch, count, rows, features)
        return TensorSpec(shape=shape, dtype=dtype, distribution=values, layout=layout)

    q = spec(queries, heads, score_distribution)
    k = spec(keys, groups, score_distribution)
    v = spec(keys, groups, distribution)
    inputs: tuple[TensorSpec, ...] = (q, k, v)
    if backward:
        grad = o = spec(queries, heads, distribution)
        lse = _lse_spec(distribution, (batch, heads, queries), features)
        inputs = (grad, q, k, v, o, lse)
    scalars = (float(causal), features**-0.5)
    return Case(name=name, inputs=inputs, scalars=scalars, timed=timed, hidden=hidden)


def _lse_spec(distribution: str, shape: tuple[int, ...], features: int) -> TensorSpec:
    """Return an lse close to the forward's, so that probabilities stay small."""
    top = 64.0 * features**0.5 + 40.0 if distribution == "shifted" else 8.0
    return TensorSpec(shape=shape, dtype="float32", distribution="uniform", low=top - 4.0, high=top)


LIBRARY_KERNEL = LibraryKernel(
    name="attention",
    summary="attention, causal or full, with grouped queries, in blocks that stay in cache",
    source_of_idea="FlashAttention-2, arXiv:2307.08691; online softmax, arXiv:1805.02867",
    kernels=kernels,
    problems=problems,
)
