"""Scans, reductions and data movement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ratchet.judge.problems.gradients import gradient_of
from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    backward,
    paired,
    problem,
    real,
    sizes,
    uniform,
    whole,
)
from ratchet.judge.problems.suites.scalars import Scalars
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance, checked

SEGMENTS = 32
COPY = Tolerance(exact=True)
ROWS = sizes((32, 256), (2048, 1024), (16384, 8192))
SEQUENCES = sizes((2, 32, 64), (4, 512, 256), (8, 4096, 4096))
VALUES = (("shifted", "contiguous"), ("heavy_tailed", "strided"), ("outliers", "transposed"))
DEFINED = (*VALUES, ("specials", "contiguous"))
"""Distributions for problems that propagate or sum inf and NaN the same in any order."""


def transpose(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x.transpose(-1, -2).contiguous(),)


def transpose_heads(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """[B, T, D] to [B, 4, T, D / 4], in memory too."""
    return (x.reshape(*x.shape[:-1], 4, -1).transpose(1, 2).contiguous(),)


def cast_transpose(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """fp32 to bf16, in the same order and transposed, from one read."""
    low = x.to(torch.bfloat16)
    return low, low.transpose(-1, -2).contiguous()


def cumulative_sum(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x.cumsum(-1),)


def cumulative_log_sum(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (torch.logcumsumexp(x, dim=-1),)


def linear_scan(decay: Tensor, x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """h[t] = decay[t] h[t - 1] + x[t] over T of [B, T, C] (linear recurrences, Mamba's core)."""
    state = torch.zeros_like(x[:, 0])
    states = []
    for step in range(x.shape[1]):
        state = decay[:, step] * state + x[:, step]
        states.append(state)
    return (torch.stack(states, dim=1),)


def discounted_returns(rewards: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """R[t] = r[t] + gamma R[t + 1] over the last dimension."""
    steps = torch.arange(rewards.shape[-1], device=rewards.device)
    gap = steps.unsqueeze(0) - steps.unsqueeze(1)
    weights = torch.where(gap >= 0, scalars[0] ** gap.clamp(min=0).to(rewards.dtype), 0.0)
    return (rewards @ weights.to(rewards.dtype).transpose(0, 1),)


def discounted_returns_backward(grad: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """d[t] = g[t] + gamma d[t - 1]: the same sums, from the front."""
    return (discounted_returns(grad.flip(-1), scalars)[0].flip(-1),)


def segment_sum(x: Tensor, owner: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Rows added up by owner, into scalars[0] rows."""
    return (x.new_zeros(int(scalars[0]), x.shape[-1]).index_add_(0, owner, x),)


def segment_sum_backward(grad: Tensor, owner: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Each row takes its owner's gradient; grad: [32, C], owner: [R] -> [R, C]."""
    return (grad[owner],)


def row_sum(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x.sum(-1),)


def column_sum(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A bias gradient."""
    return (x.sum(0),)


def mean_and_variance(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    variance, mean = torch.var_mean(x, dim=-1, correction=0)
    return mean, variance


def log_sum_exp(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (torch.logsumexp(x, dim=-1),)


def arg_max(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (x.argmax(-1),)


def check_arg_max(
    inputs: Sequence[Tensor],
    got: Sequence[Tensor],
    own: Sequence[Tensor],
    oracle: Sequence[Tensor],
    scalars: Scalars,
) -> list[OutputCheck]:
    """Accept any position of the largest value."""
    places, x = got[0], inputs[0]
    form = places.shape == own[0].shape and places.dtype == own[0].dtype
    inside = form and bool(((places >= 0) & (places < x.shape[-1])).all())
    if not inside:
        return [checked(False, "positions of another shape or dtype, or outside the row")]
    right = torch.equal(x.gather(-1, places.unsqueeze(-1)).squeeze(-1), x.amax(-1))
    return [checked(right, "the largest value of each row" if right else "not the largest value")]


cumulative_log_sum_backward = gradient_of(cumulative_log_sum, inputs=(0,))
linear_scan_backward = gradient_of(linear_scan, inputs=(0, 1))
mean_and_variance_backward = gradient_of(mean_and_variance, inputs=(0,), outputs=2)
log_sum_exp_backward = gradient_of(log_sum_exp, inputs=(0,))


def cumulative_sum_backward(grad: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (grad.flip(-1).cumsum(-1).flip(-1),)


_form = partial(
    Form,
    module=__name__,
    make=lambda rows, width: (real(rows, width),),
    sizes=ROWS,
    ragged=(13, 76),
    variations=VALUES,
)


def _per_row(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows),)


def _tokens(batch: int, length: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(batch, length, width),)


def _scanned(batch: int, length: int, width: int) -> tuple[TensorSpec, ...]:
    shape = (batch, length, width)
    return (uniform(*shape, low=0.5, high=1.0), real(*shape))


def problems() -> tuple[Problem, ...]:
    """Return every problem; gradients only if they are another computation."""
    scan = _form(
        name="linear_scan",
        make=_scanned,
        sizes=sizes((2, 16, 32), (4, 64, 256), (8, 2048, 4096)),
        ragged=(2, 7, 5),
        varied=(1,),
        variations=VALUES[:2],
    )
    heads = _form(
        name="transpose_heads",
        make=_tokens,
        sizes=SEQUENCES,
        ragged=(2, 7, 20),
        tolerance=COPY,
        variations=DEFINED,
    )
    returns = _form(
        name="discounted_returns",
        scalars=(0.95,),
        sizes=sizes((32, 64), (512, 256), (8192, 1024)),
    )
    segments = _form(
        name="segment_sum",
        make=lambda rows, width: (real(rows, width), whole(rows, below=SEGMENTS)),
        scalars=(float(SEGMENTS),),
        variations=DEFINED,
    )
    of_segments = backward(
        segments, outputs=lambda rows, width: (real(SEGMENTS, width),), kept=(1,)
    )
    forms = [
        *paired([_form(name="cumulative_log_sum")]),
        *paired([scan], outputs=_tokens),
        *paired(
            [_form(name="mean_and_variance")], outputs=lambda rows, _: (real(rows), real(rows))
        ),
        *paired([_form(name="log_sum_exp")], outputs=_per_row),
        *paired([_form(name="cumulative_sum")], kept=()),
        _form(name="transpose", tolerance=COPY, variations=DEFINED),
        _form(name="cast_transpose", tolerance=COPY, variations=DEFINED),
        heads,
        *paired([returns], kept=()),
        *(segments, replace(of_segments, tolerance=COPY)),
        _form(name="row_sum", variations=DEFINED),
        _form(name="column_sum", variations=DEFINED),
        _form(name="arg_max", check=f"{__name__}:check_arg_max"),
    ]
    return tuple(map(problem, forms))
