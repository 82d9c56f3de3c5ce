"""The bound of sums: a textbook's loop lies within it, and fewer bits than the task's do not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ratchet.judge.problems.case import TensorSpec
from ratchet.judge.problems.inputs import build
from ratchet.judge.problems.tolerance import (
    ALONE,
    MOST_AMPLIFIED,
    MOST_TERMS,
    Loss,
    Tolerance,
    loss_over,
)
from ratchet.judge.workers import gate

EPS = torch.finfo(torch.float32).eps
Function = Callable[..., Tensor]


def outputs_of(function: Function) -> gate.Call:
    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [function(*inputs)]

    return call


def refusing(x: Tensor) -> Tensor:
    if bool(x.isnan().any()):
        raise ValueError("NaN")
    return x.sum(-1)


@pytest.mark.parametrize(
    ("function", "shapes", "terms"),
    [
        (torch.relu, [(5, 7)], 1),
        (lambda x, y: x * y, [(5, 7), (5, 7)], 1),
        (lambda x: F.softmax(x, -1), [(5, 7)], 7),
        (lambda x: x.mean(-1), [(5, 7)], 7),
        (lambda x: F.layer_norm(x, (7,)), [(5, 7)], 7),
        (lambda x: x.var(0), [(5, 7)], 5),
        (lambda x: x.cumsum(-1), [(5, 7)], 7),
        (lambda x, y: x @ y, [(5, 9), (9, 4)], 9),
        (lambda x, y: F.mse_loss(x, y), [(5, 7), (5, 7)], 35),
        (lambda x: x.nan_to_num().sum(-1), [(5, 7)], 1),
        (refusing, [(5, 7)], 1),
        (lambda x: x.sum(), [()], 1),
    ],
)
def test_what_an_output_adds_up_is_found(
    function: Function, shapes: Sequence[tuple[int, ...]], terms: int
) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    assert gate.terms(outputs_of(function), inputs, random.Random(1)) == [terms]


def test_nan_that_is_there_already_does_not_count() -> None:
    x = torch.randn(5, 7)
    x[1, 2] = math.nan
    found = gate.terms(outputs_of(lambda x: F.softmax(x, -1)), [x], random.Random(1))
    assert found == [7]


def test_integers_are_left_alone() -> None:
    given = [torch.arange(6), torch.randn(9, 4)]
    call = outputs_of(lambda at, table: table[at].sum(-1))
    assert 1 <= gate.terms(call, given, random.Random(1))[0] <= 9
    wide = [given[0], given[1].double()]
    assert gate.conditions(call, wide, random.Random(1))[0][0] >= 1


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (lambda x: x * 3, 1, 1.01),
        (lambda x: x.sum(-1), 1, 1.5),
        (lambda x: x.square(), 1.99, 2.01),
        (lambda x: x + 8 - (x + 8).mean(-1, keepdim=True), 0.9, 1.5),
        (lambda x: torch.exp(x.abs().sum(-1)), 30, 70),
    ],
)
def test_the_condition_says_how_far_errors_are_carried(
    function: Function, low: float, high: float
) -> None:
    x = torch.randn(32, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ((found, single),) = gate.conditions(outputs_of(function), [x], random.Random(1))
    assert low <= found <= min(high, single)
    ((shifted, _),) = gate.conditions(
        outputs_of(lambda x: x - x.mean(-1, keepdim=True)), [x + 8], random.Random(1)
    )
    assert 6 < shifted < 10


@given(
    terms=st.floats(1, 1e9),
    more=st.floats(1, 10),
    lost=st.floats(0, 1e-3),
    condition=st.floats(1, 1e6),
)
def test_more_terms_allow_more_up_to_a_limit(
    terms: float, more: float, lost: float, condition: float
) -> None:
    few = Loss(terms=terms, condition=condition).sequential(EPS, lost)
    many = Loss(terms=terms * more, condition=condition).sequential(EPS, lost)
    assert 0 <= few <= many <= 1.5 * MOST_TERMS**0.5 * MOST_AMPLIFIED * EPS
    assert Loss(terms=1.0).sequential(EPS, lost) == 0
    assert Loss(terms=terms).sequential(EPS, lost) <= 1.5 * MOST_TERMS**0.5 * EPS


def test_work_on_each_element_may_carry_one_rounding_as_far_as_the_function() -> None:
    """GPUs take exp(x) as exp2(x log2 e). A published gate of exp(A) was 3.9 times outside."""
    x = torch.linspace(40, 80, 4096)
    own, exact, got = x.exp(), x.double().exp(), (x * math.log2(math.e)).exp2()
    ((condition, single),) = gate.conditions(outputs_of(torch.exp), [x.double()], random.Random(1))
    usual = Loss(condition=condition, single=single)
    assert Tolerance().check(got, own, exact, usual).passed
    assert not Tolerance().check(got, own, exact).passed
    with_tf32 = (x.view(torch.int32) & ~0x1FFF).view(torch.float32).exp()
    assert not Tolerance().check(with_tf32, own, exact, usual).passed


def test_one_sensitive_element_widens_its_own_bound_and_not_the_norm() -> None:
    # A gate near 0 among gates of 200,000 (SwiGLU's backward), as measured.
    exact = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).double()
    own, got = exact.float(), exact.float()
    own[3, 5] += 0.0011
    got[3, 5] += 0.0078
    loss = Loss(largest=1.1e-4, typical=2e-5, terms=5e5, condition=548.0, single=31_440.0)
    assert Tolerance().check(got, own, exact, loss).passed
    assert not Tolerance().check(got, own, exact, replace(loss, single=548.0)).passed
    got += 0.0078
    check = Tolerance().check(got, own, exact, loss)
    assert not check.passed and check.element_ratio <= 1 < check.norm_ratio


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(2, 3000),
    seed=st.integers(0, 1 << 30),
    shift=st.sampled_from([0.0, 0.5, 8.0]),
)
def test_a_sum_in_one_accumulator_is_right(length: int, seed: int, shift: float) -> None:
    x = torch.randn(16, length, generator=torch.Generator().manual_seed(seed)) + shift
    got = torch.from_numpy(np.cumsum(x.numpy(), axis=-1)[:, -1].copy())
    exact = x.double().sum(-1)
    assert Tolerance().check(got, x.sum(-1), exact, Loss(terms=length)).passed


@pytest.mark.parametrize("seed", range(20))
def test_small_terms_may_vanish_beside_a_large_one(seed: int) -> None:
    """torch's lanes, 16 of them with AVX-512, lose as many times less than one accumulator."""
    generator = torch.Generator().manual_seed(seed)
    call = outputs_of(lambda x: F.softmax(x, -1))
    draws = []
    for _ in range(10):
        x = torch.randn(5, 4099, generator=generator).square()
        draws.append((call([x])[0], call([x.double()])[0], x))
    *before, (own, oracle, x) = draws
    ((condition, single),) = gate.conditions(call, [x.double()], random.Random(seed))
    usual = loss_over([(one, exact) for one, exact, _ in before])
    usual = replace(usual, terms=4099.0, condition=condition, single=single)
    powers = (x - x.amax(-1, keepdim=True)).exp().numpy()
    got = torch.from_numpy(powers / np.cumsum(powers, axis=1, dtype=np.float32)[:, -1:])
    assert Tolerance().check(got, own, oracle, usual).passed
    coarse = F.softmax(_rounded(x, 13), -1)
    assert not Tolerance().check(coarse, own, oracle, usual).passed


@settings(max_examples=30, deadline=None)
@given(length=st.sampled_from([64, 256, 1024, 4096]), seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("dropped", [16, 13])
def test_products_of_fewer_bits_are_wrong(dropped: int, length: int, seed: int) -> None:
    """bfloat16 and TF32: the inputs lose bits, and everything else is exact."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(32, length, generator=generator) for _ in range(2))
    exact, own = x.double() @ y.double().T, x @ y.T
    loss = loss_over([(own, exact)])
    usual = Loss(largest=loss.largest, typical=loss.typical, terms=length, condition=2.0)
    got = (_rounded(x, dropped).double() @ _rounded(y, dropped).double().T).float()
    assert not Tolerance().check(got, own, exact, usual).passed
    assert Tolerance().check(own, own, exact, usual).passed


def class_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    right = F.one_hot(targets, logits.shape[-1])
    return F.softmax(logits, -1) - right.to(logits.dtype)


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_s_log_may_be_kept_where_logits_are_large(seed: int) -> None:
    """exp(x - log of the sum) loses eps times the log, exp(x - largest) / sum does not: both right.

    The function carries an error of its inputs just as far, so fewer bits of them are still wrong.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(13, 77, generator=generator)
    logits[0, 5], logits[0, 9], logits[4, 7] = 1000.0, 1000.5, -1000.0
    targets = torch.randint(0, 77, (13,), generator=generator)
    call = outputs_of(lambda x: class_gradient(x, targets))
    own, exact = class_gradient(logits, targets), class_gradient(logits.double(), targets)
    ((condition, _),) = gate.conditions(call, [logits.double()], random.Random(seed))
    usual = replace(loss_over([(own, exact)]), terms=77.0, condition=condition)
    kept = torch.exp(logits - logits.logsumexp(-1, keepdim=True)) - F.one_hot(targets, 77)
    assert Tolerance().check(kept, own, exact, usual).passed
    for dropped in (16, 13):
        low = class_gradient(_rounded(logits, dropped), targets)
        assert not Tolerance().check(low, own, exact, usual).passed


def shares_gradient(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *, kept: bool) -> Tensor:
    """Of an attention's queries; `kept`: by way of the log of each row's sum, which is kept."""
    scores = q @ k.T / q.shape[-1] ** 0.5
    shares = torch.exp(scores - scores.logsumexp(-1, keepdim=True)) if kept else scores.softmax(-1)
    down = grad @ v.T
    delta = (shares @ v * grad).sum(-1, keepdim=True) if kept else (shares * down).sum(-1, True)
    return shares * (down - delta) @ k / q.shape[-1] ** 0.5


@pytest.mark.parametrize("seed", range(30))
def test_one_element_of_heavy_tailed_values_carries_errors_far(seed: int) -> None:
    """Right kernels lie inside the bound of every element; fewer bits lie outside of the norm's."""
    generator = torch.Generator().manual_seed(seed)
    spec = TensorSpec(shape=(37, 16), dtype="float32", distribution="heavy_tailed")
    given = [torch.randn(37, 16, generator=generator)]
    given += [build([spec], seed=10 * seed + at)[0] for at in range(3)]
    wide = [one.double() for one in given]
    reference = partial(shares_gradient, kept=False)
    own, exact = reference(*given), reference(*wide)
    ((condition, single),) = gate.conditions(outputs_of(reference), wide, random.Random(seed))
    usual = loss_over([(own, exact)])
    usual = replace(usual, terms=37.0 * 16, condition=condition, single=single)
    other = Tolerance().check(shares_gradient(*given, kept=True), own, exact, usual)
    assert other.passed and other.element_ratio < 0.4, other.detail
    low = reference(*(_rounded(one, 13) for one in given))  # TF32
    assert not Tolerance().check(low, own, exact, usual).passed


def test_one_element_s_condition_widens_no_norm() -> None:
    exact = torch.ones(1 << 16, dtype=torch.float64)
    usual = Loss(terms=64.0, condition=2.0, single=32.0)
    bound = ALONE * usual.sequential(EPS, 0.0, single=True)
    assert bound == pytest.approx(ALONE * 16 * usual.sequential(EPS, 0.0))
    one = exact.float()
    one[7] += 0.9 * bound
    assert Tolerance().check(one, exact.float(), exact, usual).passed
    all_of_them = (exact + 0.9 * bound).float()
    assert not Tolerance().check(all_of_them, exact.float(), exact, usual).passed


def test_without_a_condition_the_reference_s_own_loss_counts() -> None:
    """The gate's widest bound: a condition that nobody measured widens nothing by itself."""
    unknown = Loss(terms=64.0, condition=math.inf)
    assert unknown.sequential(EPS, 0.0) == Loss(terms=64.0).sequential(EPS, 0.0)
    assert unknown.sequential(EPS, 4 * EPS) == pytest.approx(8 * unknown.sequential(EPS, 0.0))
    assert unknown.sequential(EPS, 1.0) == pytest.approx(16 * unknown.sequential(EPS, 0.0))


@pytest.mark.parametrize("terms", [1.0, 64.0])
def test_one_element_may_lose_more_where_large_terms_cancel(terms: float) -> None:
    exact = torch.full((64,), 1.0, dtype=torch.float64)
    own = exact.float()
    own[0] += 30 * EPS
    usual = Loss(largest=30 * EPS, typical=4 * EPS, terms=terms)
    for times, right in ((10, True), (14, False)):
        got = exact.float()
        got[0] += times * 30 * EPS
        found = Tolerance().check(got, own, exact, usual)
        assert (found.element_ratio <= 1) == right
    every = torch.full((64,), 1.0) + 10 * 30 * EPS
    assert not Tolerance().check(every, own, exact, usual).passed


def _rounded(x: Tensor, dropped: int) -> Tensor:
    bits = x.view(torch.int32) + (1 << (dropped - 1))
    return (bits & ~((1 << dropped) - 1)).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_held_to_its_own_units(dtype: torch.dtype) -> None:
    own = torch.linspace(1, 2, 64).to(dtype)
    usual = Loss(typical=0.1, terms=1e9, condition=1.0)
    far = (own.double() * (1 + 5 * torch.finfo(dtype).eps)).to(dtype)
    assert not Tolerance().check(far, own, own.double(), usual).passed
    alone = Tolerance().check(far, own, own.double())
    assert Tolerance().check(far, own, own.double(), usual).element_ratio == alone.element_ratio


def test_double_sums_are_held_to_double() -> None:
    own = torch.linspace(1, 2, 64, dtype=torch.float64)
    usual = Loss(terms=4096.0)
    assert not Tolerance().check(own.float().double(), own, own, usual).passed
    assert Tolerance().check(own * (1 + 2.0**-48), own, own, usual).passed
