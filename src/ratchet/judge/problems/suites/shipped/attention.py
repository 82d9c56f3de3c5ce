"""Attention in plain torch, and the problems of its kernels.

With float64 inputs everything is float64. Otherwise scores and softmax are fp32, and the operands
of each product are rounded to the inputs' dtype, as flash attention rounds them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.judge.problems.tolerance import Tolerance

ENTRIES: Final = {"attention": ("attention_forward", "attention_backward")}


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


def attention_problems(shapes: WorkloadShapes, *, causal: bool = True) -> tuple[Problem, ...]:
    """Return forward and backward at the workload's heads, with small cases of every kind."""
    return tuple(
        Problem(
            name=entry,
            reference=f"{__name__}:{entry}",
            cases=_cases(shapes, causal, entry),
            tolerance=_tolerance(shapes.dtype, entry),
        )
        for entry in ENTRIES["attention"]
    )


def _tolerance(dtype: str, entry: str) -> Tolerance:
    """Return the default, except for fp32 gradients: another order of summing a score over D moves
    a probability by several ulp, and few queries do not average that out."""
    return (
        Tolerance(ulps=8.0) if dtype == "float32" and entry == "attention_backward" else Tolerance()
    )


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

    backward = entry == "attention_backward"
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
