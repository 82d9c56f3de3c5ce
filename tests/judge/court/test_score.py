"""fast_p and the mean over a suite: no failure is ever dropped."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.measure import Ratio
from ratchet.judge.court.suite import FAILED_RATIO, RowStatus, SuiteRow, answered, score, summarise
from ratchet.judge.verdict import Speedups


def row(status: RowStatus, ratio: float | None = None, spread: float = 0.1) -> SuiteRow:
    measured = (
        None if ratio is None else Ratio(ratio=ratio, low=ratio - spread, high=ratio + spread)
    )
    speedup = Speedups(vs_reference=measured, vs_compile=measured)
    return SuiteRow(name="p", status=status, reason="", speedup=speedup)


def test_fast_p_counts_right_kernels_whose_interval_lies_above_p() -> None:
    rows = [row("proven", 2.5), row("proven", 1.25), row("correct", 1.05), row("wrong")]
    found = score(rows, "vs_reference")
    assert found.fast_p == {"1": 0.5, "1.2": 0.25, "1.5": 0.25, "2": 0.25}
    assert found.fast_p_by_estimate == {"1": 0.75, "1.2": 0.5, "1.5": 0.25, "2": 0.25}
    assert found.measured == 3


def test_fast_p_wants_a_proof_for_every_case_and_not_a_mean_alone() -> None:
    """The mean over two cases lies above p, and one of them is undecided."""
    found = score([row("correct", 2.5), row("proven", 1.3)], "vs_reference")
    assert found.fast_p == {"1": 0.5, "1.2": 0.0, "1.5": 0.0, "2": 0.0}
    assert found.fast_p_by_estimate == {"1": 1.0, "1.2": 1.0, "1.5": 0.5, "2": 0.5}
    assert found.measured == 2


def test_a_fast_time_of_a_wrong_kernel_counts_for_nothing() -> None:
    found = score([row("wrong", 50.0), row("cheating", 50.0)], "vs_reference")
    assert found.measured == 0
    assert set(found.fast_p.values()) == {0.0}
    assert found.geometric_mean == pytest.approx(FAILED_RATIO)
    assert found.geometric_mean_of_measured is None


def test_a_failure_pulls_the_mean_down_and_leaves_the_mean_of_the_measured() -> None:
    found = score([row("proven", 4.0), row("crashed")], "vs_reference")
    assert found.geometric_mean == pytest.approx(math.sqrt(4.0 * FAILED_RATIO))
    assert found.geometric_mean_of_measured == pytest.approx(4.0)


def test_a_right_kernel_that_nobody_timed_is_no_win() -> None:
    found = score([row("correct", None)], "vs_compile")
    assert found.measured == 0 and found.fast_p["1"] == 0.0


@given(
    st.lists(st.floats(0.02, 50.0), min_size=1, max_size=20),
    st.integers(min_value=1, max_value=5),
)
def test_one_more_failure_never_raises_any_score(ratios: list[float], failures: int) -> None:
    before = [row("proven", ratio, spread=0.0) for ratio in ratios]
    after = [*before, *(row("timed_out") for _ in range(failures))]
    old, new = score(before, "vs_reference"), score(after, "vs_reference")
    assert new.geometric_mean is not None and old.geometric_mean is not None
    assert new.geometric_mean < old.geometric_mean * (1 + 1e-12)
    assert all(new.fast_p[p] <= old.fast_p[p] for p in old.fast_p)


@given(st.floats(1e-6, 1e3))
def test_failing_never_scores_better_than_a_slow_right_answer(ratio: float) -> None:
    right, failed = (
        score([row("correct", ratio, 0.0)], "vs_reference"),
        score([row("timed_out")], "vs_reference"),
    )
    assert right.geometric_mean is not None and failed.geometric_mean is not None
    assert failed.geometric_mean <= right.geometric_mean * (1 + 1e-12)


def test_what_nobody_answers_counts_among_all_and_not_among_the_answered() -> None:
    rows = [row("proven", 2.0), row("unanswered"), row("not_reached")]
    everything = summarise(rows, against_compile=True)
    ours = summarise(answered(rows), against_compile=True)
    assert (everything.problems, ours.problems) == (3, 1)
    assert everything.statuses == {"proven": 1, "unanswered": 1, "not_reached": 1}
    assert everything.vs_reference.fast_p["1"] == pytest.approx(1 / 3)
    assert ours.vs_reference.fast_p["1"] == 1.0


def test_a_rival_that_nobody_asked_for_has_no_score() -> None:
    assert summarise([row("proven", 2.0)], against_compile=False).vs_compile is None


def test_no_problem_at_all() -> None:
    found = summarise([], against_compile=True)
    assert found.problems == 0
    assert found.vs_reference.geometric_mean is None
