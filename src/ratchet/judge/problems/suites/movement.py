"""Scans, reductions and data movement."""

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
    Tensors,
    backward,
    gradient_of,
    paired,
    problem,
    real,
    sizes,
    uniform,
    whole,
)
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance, checked, same_form

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
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
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


def _tokens(batch: int, length: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(batch, length, width),)


def _scanned(batch: int, length: int, width: int) -> tuple[TensorSpec, ...]:
    shape = (batch, length, width)
    return (uniform(*shape, low=0.5, high=1.0), real(*shape))


def movement_problems() -> tuple[Problem, ...]:
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
        *paired([_form(name="log_sum_exp")], outputs=lambda rows, _: (real(rows),)),
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


# Embeddings, routing and permutation of tokens among experts, with their gradients.

LOOKUP = sizes((64, 128, 32), (2048, 8192, 512), (16384, 128256, 4096))
TOKENS = sizes((64, 8, 32), (2048, 16, 512), (16384, 64, 4096))
CHOSEN = 2


def embedding(indices: Tensor, table: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.embedding(indices, table),)


def embedding_gradient(grad: Tensor, indices: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """grad [N, D] summed by word into a table of scalars[0] rows."""
    table = grad.new_zeros(int(scalars[0]), grad.shape[-1])
    return (table.index_add_(0, indices, grad),)


def embedding_with_positions(
    indices: Tensor, table: Tensor, positions: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    return (F.embedding(indices, table) + positions[: indices.shape[0]],)


def embedding_with_positions_backward(
    grad: Tensor, indices: Tensor, table: Tensor, positions: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Added to the gradients of the table and of the positions, in place.

    grad: [N, D], indices: [N], table: [words, D], positions: [at least N, D].
    """
    positions[: indices.shape[0]] += grad
    return table.index_add_(0, indices, grad), positions


def embedding_bag(indices: Tensor, table: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The mean of the rows that a bag names; indices: [bags, length]."""
    return (F.embedding(indices, table).mean(1),)


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, total: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Added to the table's gradient, in place as between the micro-batches of a step.

    grad: [bags, D], indices: [bags, length], total: [words, D].
    """
    share = (grad / indices.shape[1]).unsqueeze(1).expand(-1, indices.shape[1], -1)
    return (total.index_add_(0, indices.flatten(), share.flatten(0, 1)),)


def route_top_k(logits: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The two best experts of each token, their weights softmaxed over the two: (weights, ids)."""
    values, experts = logits.topk(CHOSEN, dim=-1)
    return F.softmax(values, dim=-1), experts


def check_route(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept equal logits in any order; the chosen ones must be the best."""
    weights, experts = got
    logits = inputs[0]
    proper = experts.shape == own[1].shape and experts.dtype == own[1].dtype
    if not proper or bool((experts < 0).any() or (experts >= logits.shape[-1]).any()):
        wrong = checked(False, "ids of another shape or dtype, or of no expert")
        return [wrong, wrong]
    distinct = bool((experts.sort(-1).values.diff(dim=-1) != 0).all())
    best = logits.topk(CHOSEN, dim=-1).values
    chosen = logits.gather(-1, experts)
    right = distinct and torch.equal(chosen, best)
    return [
        Tolerance().check(weights, own[0], oracle[0]),
        checked(right, "the best experts, each once" if right else "not the best experts"),
    ]


def check_route_backward(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Skip tokens whose best logits are equal: either route is right."""
    if not same_form(got[0], own[0]):
        return [checked(False, "a gradient of another shape or dtype")]
    clear = (inputs[1].topk(CHOSEN + 1, dim=-1).values.diff(dim=-1) != 0).all(-1)
    return [Tolerance().check(got[0][clear], own[0][clear], oracle[0][clear])]


def expert_counts(experts: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """The number of tokens for each of scalars[0] experts."""
    return (torch.bincount(experts, minlength=int(scalars[0])),)


def permute_tokens(x: Tensor, experts: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Tokens in the order of their experts, ties in the tokens' order: (tokens, places)."""
    order = torch.sort(experts, stable=True).indices
    return x[order], order


def permute_tokens_backward(grad: Tensor, experts: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Gradients sent back to their tokens' positions; grad: [N, D], experts: [N]."""
    order = torch.sort(experts, stable=True).indices
    return (torch.empty_like(grad).index_copy_(0, order, grad),)


def combine_experts(
    y: Tensor, places: Tensor, weights: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Each token is the weighted sum of its two experts' rows of y, [2 N, D] at `places` [N, 2]."""
    return ((y[places] * weights.unsqueeze(-1)).sum(1),)


def balance_loss(logits: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Load-balancing loss of Switch Transformers (arXiv:2101.03961), one term per expert."""
    shares = F.softmax(logits, dim=-1)
    first = F.one_hot(shares.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return (first.mean(0) * shares.mean(0) * logits.shape[-1],)


route_top_k_backward = gradient_of(route_top_k, inputs=(0,))
combine_experts_backward = gradient_of(combine_experts, inputs=(0, 2))
balance_loss_backward = gradient_of(balance_loss, inputs=(0,))

DISTRIBUTIONS = (("shifted", "contiguous"), ("heavy_tailed", "strided"), ("large", "transposed"))


_table_form = partial(Form, module=__name__, variations=DISTRIBUTIONS)
_lookup = partial(_table_form, sizes=LOOKUP, ragged=(13, 29, 7))
_routed = partial(_table_form, sizes=TOKENS, ragged=(37, 5, 7))


def _looked_up(tokens: int, words: int, width: int) -> tuple[TensorSpec, ...]:
    return (whole(tokens, below=words), real(words, width))


def _with_positions(tokens: int, words: int, width: int) -> tuple[TensorSpec, ...]:
    return (*_looked_up(tokens, words, width), real(tokens + 3, width))


def _with_positions_backward(tokens: int, words: int, width: int) -> tuple[TensorSpec, ...]:
    table, positions = real(words, width, in_place=True), real(tokens + 3, width, in_place=True)
    return (real(tokens, width), whole(tokens, below=words), table, positions)


def _bags_backward(tokens: int, words: int, width: int) -> tuple[TensorSpec, ...]:
    total = real(words, width, in_place=True)
    return (real(tokens, width), whole(tokens, 8, below=words), total)


def _rows(tokens: int, experts: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(tokens, width),)


def _logits(tokens: int, experts: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(tokens, experts),)


def _combined(tokens: int, experts: int, width: int) -> tuple[TensorSpec, ...]:
    places = whole(tokens, CHOSEN, below=CHOSEN * tokens)
    return (real(CHOSEN * tokens, width), places, real(tokens, CHOSEN))


def table_problems() -> tuple[Problem, ...]:
    """Return tables, routing and permutation; gradients only if they are more than a copy."""
    routed = _routed(name="route_top_k", make=_logits, check=f"{__name__}:check_route")
    permuted = _routed(
        name="permute_tokens", make=lambda n, e, w: (real(n, w), whole(n, below=e)), tolerance=COPY
    )
    combined = _routed(name="combine_experts", make=_combined, varied=(0, 2))
    balance = _routed(name="balance_loss", make=_logits)
    counted = _table_form(
        name="expert_counts",
        make=lambda tokens, experts, width: (whole(tokens, below=experts),),
        sizes=sizes((512, 8, 1), (1 << 18, 16, 1), (1 << 22, 64, 1)),
        ragged=(101, 5, 1),
        scalars=(64.0,),
        tolerance=COPY,
        variations=(),
    )
    forms = [
        _lookup(name="embedding", make=_looked_up, tolerance=COPY, varied=(1,)),
        _lookup(
            name="embedding_gradient",
            make=lambda tokens, words, width: (real(tokens, width), whole(tokens, below=64)),
            scalars=(64.0,),
        ),
        _lookup(name="embedding_with_positions", make=_with_positions, varied=(1, 2)),
        _lookup(name="embedding_with_positions_backward", make=_with_positions_backward),
        _lookup(
            name="embedding_bag",
            make=lambda tokens, words, width: (whole(tokens, 8, below=words), real(words, width)),
            varied=(1,),
        ),
        _lookup(name="embedding_bag_backward", make=_bags_backward),
        routed,
        replace(
            backward(routed, outputs=lambda tokens, experts, width: (real(tokens, CHOSEN),)),
            check=f"{__name__}:check_route_backward",
            variations=DISTRIBUTIONS[:2],
        ),
        counted,
        *paired([permuted], outputs=_rows, kept=(1,)),
        *paired([combined], outputs=_rows),
        *paired([balance], outputs=lambda tokens, experts, width: (real(experts),)),
    ]
    return tuple(map(problem, forms))
