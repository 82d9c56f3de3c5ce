"""The suite in bf16: sums in fp32 are right however they are rounded, sums in bf16 are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from each_case import each
from torch import Tensor

from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.suites import load_suite
from ratchet.judge.problems.tolerance import Loss, loss_over
from ratchet.judge.workers.reference import ENOUGH_ELEMENTS, MOST_DRAWS

SUITE = {problem.name: problem for problem in load_suite("training")}
LOW = {name: problem for name, problem in SUITE.items() if "_bf16" in name}
SEEDS = range(3, 23 if os.environ.get("RATCHET_TEST") == "all" else 4)


def call(
    problem: Problem, inputs: Sequence[Tensor], case: Case, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """The reference's outputs; `dtype` is what its real inputs are turned into first."""
    own = [one.to(dtype) if dtype and one.dtype.is_floating_point else one for one in inputs]
    with torch.no_grad():
        return list(problem.load_reference()(*own, case.scalars))


def rounded(outputs: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    return [one.to(other.dtype) for one, other in zip(outputs, like, strict=True)]


def usual(problem: Problem, case: Case) -> list[Loss]:
    """What the judge's worker knows of the reference before it calls an answer wrong."""
    draws: list[tuple[list[Tensor], list[Tensor]]] = []
    while sum(min(one.numel() for one in own) for own, _ in draws) < ENOUGH_ELEMENTS:
        inputs = problem.build_inputs(case, 100 + len(draws))
        draws.append((call(problem, inputs, case), call(problem, inputs, case, torch.float64)))
        if len(draws) == MOST_DRAWS:
            break
    pairs = zip(*(zip(*draw, strict=True) for draw in draws), strict=True)
    return [replace(loss_over(one), terms=4096.0, condition=2.0) for one in pairs]


def passes(problem: Problem, case: Case, inputs: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    """Whether the judge takes an answer: by this draw alone, or by what is usual too."""
    own, oracle = call(problem, inputs, case), call(problem, inputs, case, torch.float64)
    checks = problem.check_outputs(case, inputs, got, own, oracle)
    if not problem.check and not all(check.passed for check in checks):
        checks = problem.tolerance.check_all(got, own, oracle, usual(problem, case))
    return all(check.passed for check in checks)


def timed(problem: Problem) -> Case:
    return next(case for case in problem.cases if case.timed)


def test_the_accelerators_dtype_is_there() -> None:
    assert len(LOW) >= 52
    for problem in LOW.values():
        for case in problem.cases:
            assert "bfloat16" in {spec.dtype for spec in case.inputs}, (problem.name, case.name)


@each(LOW, parts=2)
def test_sums_in_fp32_that_are_rounded_once_are_right(name: str) -> None:
    """What a fused kernel does, and the best there is: the oracle itself in the output's dtype."""
    problem = LOW[name].at("ci")
    for case in problem.cases:
        for seed in SEEDS:
            inputs = problem.build_inputs(case, seed)
            own = call(problem, inputs, case)
            for dtype in (torch.float32, torch.float64):
                got = rounded(call(problem, inputs, case, dtype), own)
                assert passes(problem, case, inputs, got), (case.name, seed, dtype)


@each(LOW, parts=2)
def test_three_percent_too_much_is_wrong(name: str) -> None:
    problem = LOW[name].at("ci")
    case = timed(problem)
    for seed in SEEDS[:2]:
        inputs = problem.build_inputs(case, seed)
        own = call(problem, inputs, case)
        for place in range(len(own)):
            got = [one * 1.03 if at == place else one for at, one in enumerate(own)]
            assert not passes(problem, case, inputs, got), place


def low_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y with one accumulator in bf16."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for k in range(x.shape[-1]):
        total = total + x[..., k : k + 1] * y[..., k : k + 1, :]
    return total


def low_sum(x: Tensor) -> Tensor:
    """The sum of each row with one accumulator in bf16."""
    return low_product(x, torch.ones(x.shape[-1], 1, dtype=torch.bfloat16))


def low_shares(x: Tensor) -> Tensor:
    """A softmax of which the sum is in bf16."""
    powers = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return powers / low_sum(powers.bfloat16()).float()


def low_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    scores = low_product(q, k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    shares = F.softmax(scores.masked_fill(future, float("-inf")), -1)
    return (low_product(shares.bfloat16(), v),)


def low_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    patches = F.unfold(x.float(), 3, padding=1).bfloat16()
    sums = low_product(weight.flatten(1), patches).view_as(x)
    return (F.relu(sums + bias.view(-1, 1, 1)),)


def low_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    chosen = low_shares(logits).gather(-1, targets.unsqueeze(-1))
    return (-chosen.log().squeeze(-1),)


def low_loss_backward(grad: Tensor, logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    right = F.one_hot(targets, logits.shape[-1])
    return (((low_shares(logits) - right) * grad.unsqueeze(-1)).bfloat16(),)


LOW_SUMS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "weight_gradient_bf16": lambda grad, x: (grad.T @ x, low_sum(grad.T.contiguous()).squeeze(-1)),
    "linear_residual_bf16": lambda x, w, b, residual: (low_product(x, w.T) + b + residual,),
    "softmax_bf16": lambda x: (low_shares(x).bfloat16(),),
    "cross_entropy_bf16": low_loss,
    "cross_entropy_bf16_backward": low_loss_backward,
    "attention_causal_bf16": low_attention,
    "conv_bias_relu_bf16": low_convolution,
}
"""The same work with one accumulator in bf16."""


LONG_ENOUGH = {
    name: "cpu" if name in ("weight_gradient_bf16", "attention_causal_bf16") else "ci"
    for name in LOW_SUMS
}
"""The sizes at which every draw's sums lose more than the bound."""


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *LONG_ENOUGH.items(),
        *(
            pytest.param(name, "cpu", marks=pytest.mark.thorough)
            for name, size in LONG_ENOUGH.items()
            if size == "ci"
        ),
    ],
)
def test_sums_in_bf16_are_wrong(name: str, size: str) -> None:
    problem = LOW[name].at(size)
    case = timed(problem)
    inputs = problem.build_inputs(case, 1)
    assert not passes(problem, case, inputs, list(LOW_SUMS[name](*inputs)))


def test_the_other_classes_have_a_bound_of_their_own() -> None:
    """Beside the right class's gradient theirs are small: an error there must show all the same."""
    problem = LOW["cross_entropy_bf16_backward"].at("cpu")
    case = timed(problem)
    _, logits, targets = inputs = problem.build_inputs(case, 1)
    (own,) = call(problem, inputs, case)
    right = F.one_hot(targets, logits.shape[-1]).bool()
    assert passes(problem, case, inputs, [own.clone()])
    assert not passes(problem, case, inputs, [torch.where(right, own, own * 1.05)])
    assert not passes(problem, case, inputs, [torch.where(right, own * 1.05, own)])
    assert not passes(problem, case, inputs, [torch.where(right, own, 0 * own)])
    (oracle,) = call(problem, inputs, case, torch.float64)
    without = problem.tolerance.check(torch.where(right, own, own * 1.05), own, oracle)
    assert without.passed  # which is why it has a check of its own


def test_equal_logits_leave_the_gradient_of_their_routing_open() -> None:
    problem = SUITE["route_top_k_backward"].at("ci")
    case = timed(problem)
    grad = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    own = call(problem, [grad, logits], case)
    tied, clear = own[0].clone(), own[0].clone()
    tied[0], clear[1] = tied[0].roll(1), clear[1].roll(1)
    assert passes(problem, case, [grad, logits], [tied])
    assert not passes(problem, case, [grad, logits], [clear])
