"""The plan and the answers of a comparison, without a process."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machine import Machine, simulate

from ratchet.base.errors import MeasureError
from ratchet.base.measure.contest import (
    FEWEST_PAIRS,
    LEAST_LAUNCHES,
    MOST_LAUNCHES,
    MOST_ROUNDS,
    batch_iterations,
    look_confidence,
    make_plan,
)
from ratchet.base.measure.metrics import BASELINE, NEW, TIME, TWIN, Metric, Readings, decide
from ratchet.base.measure.metrics import exit_code as code_of
from ratchet.base.serialise import document_of

ARMS = (BASELINE, NEW, TWIN)


def readings_of(times: np.ndarray, launches: int | None = None) -> Readings:
    """One experiment's [arm, launch, round]."""
    made = Readings()
    for (arm, launch, index), value in np.ndenumerate(times[:, :launches]):
        made.add(TIME.name, ARMS[arm], launch, index, float(value))
    return made


def test_both_copies_of_the_baseline_count() -> None:
    random = np.random.default_rng(0).lognormal(sigma=0.1, size=(3, 200, 4))
    made = readings_of(random)
    one = np.concatenate(made.log_ratios(TIME.name, (BASELINE,), NEW))
    both = np.concatenate(made.log_ratios(TIME.name, (BASELINE, TWIN), NEW))
    assert np.var(both) / np.var(one) == pytest.approx(0.75, abs=0.1)
    given = constant(1.0, 2.0)
    given.add(TIME.name, TWIN, 0, 0, math.e)
    assert given.log_ratios(TIME.name, (BASELINE, TWIN), NEW)[0][0] == pytest.approx(
        0.5 - math.log(2)
    )


def constant(a: float, b: float) -> Readings:
    made = Readings()
    for at in range(8):
        for arm, value in ((BASELINE, a), (NEW, b), (TWIN, a)):
            made.add(TIME.name, arm, at // 2, at % 2, value)
    return made


@given(
    left=st.floats(1, 1e5),
    setup=st.floats(0, 1e3),
    round_s=st.floats(1e-4, 1e4),
)
def test_a_plan_fits_its_time(left: float, setup: float, round_s: float) -> None:
    plan = make_plan(left, setup_s=setup, round_s=round_s)
    if plan is None:
        assert left < LEAST_LAUNCHES * setup + (FEWEST_PAIRS + LEAST_LAUNCHES) * round_s * 1.01
        return
    assert plan.launches * (setup + plan.rounds * round_s) <= left * 1.001
    assert LEAST_LAUNCHES <= plan.launches <= MOST_LAUNCHES and plan.rounds <= MOST_ROUNDS
    assert plan.rounds % 2 == 0 and plan.pairs >= FEWEST_PAIRS
    assert plan.looks[-1] == plan.launches and list(plan.looks) == sorted(set(plan.looks))


def test_a_sample_is_never_too_short() -> None:
    assert batch_iterations(0.1) == 1
    assert batch_iterations(1e-3) == 20
    assert batch_iterations(0.0) == 1000


@pytest.mark.parametrize(
    ("a", "b", "allowed", "answer", "code"),
    [
        (1.0, 1.0, 0.0, "equivalent", 0),
        (1.0, 0.9, 0.0, "faster", 0),
        (1.0, 1.1, 0.0, "slower", 1),
        (1.0, 1.1, 0.02, "slower", 1),
        (1.0, 1.1, 0.2, "equivalent", 0),
        (1.0, 0.5, 0.02, "faster", 0),
    ],
)
def test_answers(a: float, b: float, allowed: float, answer: str, code: int) -> None:
    found = decide(constant(a, b), TIME, allowed=allowed, confidence=0.99)
    assert found is not None
    assert found.answer == answer and found.more_pairs is None
    assert found.ratio == pytest.approx(a / b)
    assert code_of([found]) == code


def test_more_may_be_better() -> None:
    metric = Metric(name=TIME.name, higher_is_better=True, decides=True)
    found = decide(constant(100, 90), metric, allowed=0, confidence=0.99)
    assert found is not None and found.answer == "slower"
    assert found.ratio == pytest.approx(0.9)


def test_a_value_of_zero_has_no_ratio() -> None:
    with pytest.raises(MeasureError, match="needs values above 0"):
        decide(constant(0.0, 1.0), TIME, allowed=0, confidence=0.99)


def test_without_pairs_there_is_no_answer() -> None:
    assert decide(Readings(), TIME, allowed=0, confidence=0.99) is None
    assert code_of([]) == 3


def test_an_undecided_answer_says_how_many_pairs_it_lacks() -> None:
    rng = np.random.default_rng(5)
    noise = np.exp(rng.normal(0, 0.05, (3, 4, 10)))
    noise[1] *= 1.01
    found = decide(readings_of(noise), TIME, allowed=0, confidence=0.997)
    assert found is not None and found.answer == "undecided"
    assert found.more_pairs is not None and found.more_pairs > 10
    more = np.exp(rng.normal(0, 0.05, (3, 4, 200)))
    more[1] *= 1.05
    decided = decide(readings_of(more), TIME, allowed=0, confidence=0.997)
    assert decided is not None and decided.answer == "slower"


def test_a_noisy_comparison_is_undecided_and_says_so() -> None:
    rng = np.random.default_rng(5)
    found = decide(
        readings_of(np.exp(rng.normal(0, 1.0, (3, 4, 10)))), TIME, allowed=0, confidence=0.99
    )
    assert found is not None and found.answer == "undecided"
    assert found.why.startswith("the machine was too noisy (interval ")
    assert document_of(found)["why"] == found.why and not found.settled
    assert code_of([found]) == 3


def test_an_answer_at_the_edge_of_the_budget_says_so() -> None:
    rng = np.random.default_rng(5)
    times = np.exp(rng.normal(0, 0.02, (3, 4, 10)))
    times[1] *= 1.02
    found = decide(readings_of(times), TIME, allowed=0.02, confidence=0.99)
    assert found is not None and found.answer == "undecided"
    assert "the budget's edge" in found.why


def rate(speedup: float, experiments: int, answers: set[str]) -> float:
    """Share of simulated comparisons with one of these answers, at the default looks."""
    plan = make_plan(300, setup_s=1.5, round_s=0.3)
    assert plan is not None
    rng = np.random.default_rng(11)
    times = simulate(
        rng,
        Machine(launch=0.005),
        experiments=experiments,
        launches=plan.launches,
        rounds=20,
        speedups=(1.0, speedup, 1.0),
    )
    confidence = look_confidence(1)
    hits = 0
    for one in times:
        for look in plan.looks:
            found = decide(readings_of(one, look), TIME, allowed=0, confidence=confidence)
            assert found is not None
            if found.answer in ("faster", "slower"):
                hits += found.answer in answers
                break
    return hits / experiments


def test_equal_sides_are_not_told_apart() -> None:
    assert rate(1.0, 8, {"faster", "slower"}) == 0


def test_three_percent_are_found() -> None:
    assert rate(1 / 1.03, 4, {"slower"}) == 1


@pytest.mark.thorough
def test_rates_over_many_comparisons() -> None:
    assert rate(1.0, 200, {"faster", "slower"}) <= 0.01
    assert rate(1 / 1.03, 60, {"slower"}) >= 0.9


def test_the_looks_pay_for_themselves() -> None:
    assert 1 - look_confidence(1) == pytest.approx(0.01 / 3)
    assert 1 - look_confidence(4) == pytest.approx(0.01 / 12)
    assert math.isclose(look_confidence(0), look_confidence(1))
