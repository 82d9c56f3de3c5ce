"""The training suite: every problem can be built, judged and told from trivial answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from each_case import each
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem, load_suite
from ratchet.judge.problems.suites.forms import gradient_of
from ratchet.judge.workers.gate import gate

SUITE = {problem.name: problem for problem in load_suite("training")}
SHIPPED = {kernel.entry for one in LIBRARY.values() for kernel in one.kernels("portable")}
OWN_CHECKS = [name for name, problem in SUITE.items() if problem.check]

OTHERWISE_NAMED = {
    "embedding": "embedding_gradient",
    "linear_forward": "linear_dgrad",
}
"""Backwards that are not called `_backward`."""
IN_CODES = "its outputs are codes or whole numbers"
FORWARD_ONLY = {
    "it is itself a part of a backward": (
        *("embedding_gradient", "linear_dgrad", "linear_wgrad"),
        *("input_gradient", "weight_gradient", "input_gradient_bf16", "weight_gradient_bf16"),
    ),
    "it gives the gradients beside the loss": ("linear_cross_entropy", "cross_entropy_rows"),
    "a step's own work on weights and gradients, which nothing differentiates": (
        *("gradient_square_sum", "adamw_step", "adam_w", "lion", "sgd_momentum", "adam_8_bit"),
        *("row_factored_second_moment", "clip_by_norm", "moving_average", "accumulate", "unscale"),
        "newton_schulz",
    ),
    "its gradient is the same movement the other way": (
        *("transpose", "transpose_heads", "cast_transpose"),
    ),
    "its gradient is a copy of one value to a whole row or column": ("row_sum", "column_sum"),
    IN_CODES: (
        *("arg_max", "expert_counts", "quantise_rows", "quantise_groups"),
        *("quantise_fp8", "quantise_fp8_gradient", "quantise_fp8_blocks"),
    ),
    "its codes have no gradient, and its scales are statistics that nothing trains": (
        *("dequantise_groups", "dequantise_fp8", "dequantise_fp8_blocks", "dequantise_fp8_weight"),
    ),
}
"""The problems without a backward in the suite, by the reason why."""


def widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [one.double() if one.dtype.is_floating_point else one for one in tensors]


def wide(tensors: Sequence[Tensor]) -> list[Tensor]:
    """fp8 as float32, whose values torch compares."""
    return [one.float() if one.dtype.itemsize == 1 else one for one in tensors]


def answers(problem: Problem, inputs: Sequence[Tensor], scalars: Sequence[float]) -> list[Tensor]:
    with torch.no_grad():
        return list(problem.load_reference()(*[one.clone() for one in inputs], scalars))


def test_there_are_enough_and_each_has_its_own_name() -> None:
    assert len(SUITE) == len(load_suite("training")) >= 230
    assert sum(name.endswith("_backward") for name in SUITE) >= 98


def has_gradient(name: str) -> bool:
    """Whether the suite holds the backward of a problem."""
    base = name.removesuffix("_forward")
    return f"{base}_backward" in SUITE or OTHERWISE_NAMED.get(name, "") in SUITE


def test_what_has_no_backward_has_a_reason() -> None:
    forward = {name for name in SUITE if not name.endswith("_backward")}
    alone = {name for name in forward if not has_gradient(name)}
    reasons = [name for names in FORWARD_ONLY.values() for name in names]
    assert len(reasons) == len(set(reasons))
    assert alone == set(reasons), "write the backward, or why there is none, into FORWARD_ONLY"
    for name in SUITE.keys() - forward:
        base = name.removesuffix("_backward")
        assert {base, f"{base}_forward"} & forward, f"{name} is the backward of no problem"


@pytest.mark.parametrize("name", FORWARD_ONLY[IN_CODES])
def test_what_has_codes_has_no_gradient(name: str) -> None:
    problem = SUITE[name].at("ci")
    case = next(case for case in problem.cases if case.timed)
    first = answers(problem, problem.build_inputs(case, 1), case.scalars)[0]
    assert not first.dtype.is_floating_point or first.dtype.itemsize == 1


@each(SUITE)
def test_a_problem_is_whole_at_every_tier(name: str) -> None:
    problem = SUITE[name]
    assert Problem.from_json(problem.as_json()) == problem
    for tier in ("ci", "cpu", "gpu"):
        cases = problem.at(tier).cases  # type: ignore[arg-type]
        assert any(case.timed for case in cases)
        assert sum(case.hidden for case in cases) >= 1
        assert not any(case.timed and case.hidden for case in cases)
    assert len({case.name for case in problem.cases}) == len(problem.cases)


@each(SUITE, parts=4)
def test_the_reference_is_right_by_its_own_check_and_trivial_answers_are_not(name: str) -> None:
    problem = SUITE[name].at("ci")
    for case in problem.cases:
        inputs = problem.build_inputs(case, 3)
        own = answers(problem, inputs, case.scalars)
        oracle = answers(problem, widened(inputs), case.scalars)
        for check in problem.check_outputs(case, inputs, own, own, oracle):
            assert check.passed, (case.name, check.detail)
        planted = "specials" in {spec.distribution for spec in case.inputs}
        floats = [one.float() for one in own if one.dtype.is_floating_point]
        assert any(not one.isfinite().all() for one in floats) == planted, case.name
    with torch.no_grad():
        assert gate(problem, problem.load_reference(), random.Random(5)) == []


@each((name for name in SUITE if name not in SHIPPED), parts=2)
def test_every_input_matters(name: str) -> None:
    """Another value of any one input gives another answer."""
    problem = SUITE[name].at("ci")
    case = next(case for case in problem.cases if case.timed)
    inputs, others = problem.build_inputs(case, 1), problem.build_inputs(case, 2)
    own = answers(problem, inputs, case.scalars)
    for place in range(len(inputs)):
        changed = [*inputs[:place], others[place], *inputs[place + 1 :]]
        found = answers(problem, changed, case.scalars)
        assert any(not torch.equal(*both) for both in zip(wide(own), wide(found), strict=True)), (
            place
        )


@pytest.mark.parametrize("name", OWN_CHECKS)
def test_an_own_check_tells_right_from_wrong(name: str) -> None:
    problem = SUITE[name].at("ci")
    case = next(case for case in problem.cases if case.timed)
    inputs = problem.build_inputs(case, 1)
    own = answers(problem, inputs, case.scalars)
    oracle = answers(problem, widened(inputs), case.scalars)
    for place, output in enumerate(own):
        wrong = [one.clone() for one in own]
        wrong[place] = output.roll(1, 0) if len(output) > 1 else output * 2
        checks = problem.check_outputs(case, inputs, wrong, own, oracle)
        assert not all(check.passed for check in checks), place
        wrong[place] = output.reshape(-1)[: output.numel() // 2]
        checks = problem.check_outputs(case, inputs, wrong, own, oracle)
        assert not all(check.passed for check in checks), place


def test_fp8_half_way_may_be_rounded_either_way_and_no_further() -> None:
    problem = find_problem("quantise_fp8_blocks").at("ci")
    x = torch.randn(64, 128).clamp(-3.0, 3.0).bfloat16()
    x[:, 0] = 3.0625  # over 448 this is a scale at which much lies half-way
    own, oracle = (answers(problem, given, ()) for given in ([x], [x.double()]))
    multiplied = (x.float() * (448 / x.float().amax(-1, keepdim=True))).to(own[0].dtype)
    other = multiplied.float() != own[0].float()
    assert 0.005 < float(other.float().mean()) < 0.1

    def passes(codes: Tensor) -> bool:
        found = problem.check_outputs(problem.cases[0], [x], [codes, own[1]], own, oracle)
        return all(check.passed for check in found)

    assert passes(multiplied)
    assert not passes((x.float() * (450 / 3.0625)).to(own[0].dtype))
    nan = own[0].clone()
    nan[3, 5] = float("nan")
    assert not passes(nan)


def test_equal_logits_may_be_routed_either_way() -> None:
    problem = find_problem("route_top_k").at("ci")
    case = problem.cases[0]
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
    own = answers(problem, [logits], ())
    swapped = [own[0].clone(), torch.tensor([[3, 1]])]
    checks = problem.check_outputs(case, [logits], swapped, own, widened(own))
    assert all(check.passed for check in checks)
    twice = [own[0].clone(), torch.tensor([[1, 1]])]
    assert not problem.check_outputs(case, [logits], twice, own, widened(own))[1].passed


def test_a_gradient_is_autograds_and_agrees_with_differences() -> None:
    def product(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor, ...]:
        return (x * y.sin() * scalars[0],)

    x, y = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    grad = torch.rand(3, dtype=torch.float64)
    with torch.no_grad():
        dx, dy = gradient_of(product, inputs=(0, 1))(grad, x, y, (2.0,))
    step = 1e-6
    for place in range(3):
        moved = y.clone()
        moved[place] += step
        slope = (product(x, moved, (2.0,))[0] - product(x, y, (2.0,))[0]) @ grad / step
        assert float(dy[place]) == pytest.approx(float(slope), rel=1e-4)
    assert torch.allclose(dx, grad * y.sin() * 2)


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(KernelError, match="gelu_tanh"):
        find_problem("gelu_tan")
    with pytest.raises(KernelError, match="training"):
        load_suite("inference")


def test_own_problems_name_what_they_allow() -> None:
    assert Counter(problem.task for problem in SUITE.values())["own"] >= 60
    assert {one for problem in SUITE.values() for one in problem.libraries} == {"matmul"}
