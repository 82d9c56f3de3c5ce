"""Change points: quiet without a change, found with one, and the same when the series grows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from history_rows import rows
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.guard.history import analyse_one, gather
from ratchet.guard.history.segments import (
    ChangePointFinder,
    change_points,
    correlation,
    normal_scores,
    p_value,
    step_at,
)


def _ar1(rng: np.random.Generator, length: int) -> np.ndarray:
    values = rng.standard_normal(length)
    for at in range(1, length):
        values[at] = 0.5 * values[at - 1] + math.sqrt(0.75) * values[at]
    return values


NOISES = {
    "gaussian": lambda rng, n: rng.standard_normal(n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "log-t3": lambda rng, n: np.exp(rng.standard_t(3, size=n) / 8),
    "ar1": _ar1,
    "spikes": lambda rng, n: rng.standard_normal(n) + 10 * (rng.random(n) < 0.02),
}


@pytest.mark.parametrize("kind", NOISES)
def test_at_most_5_percent_of_series_without_a_change_get_a_point(kind: str) -> None:
    rng = np.random.default_rng(11)
    false = sum(bool(change_points(NOISES[kind](rng, 200))) for _ in range(100))
    assert false <= 5


@pytest.mark.parametrize("kind", ["gaussian", "exponential", "spikes"])
def test_a_step_is_found_where_it_is(kind: str) -> None:
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(20):
        values = NOISES[kind](rng, 200)
        values[120:] += 1.5
        found += any(abs(one.index - 120) <= 5 for one in change_points(values))
    assert found >= 17


@given(st.integers(0, 2**31), st.lists(st.integers(1, 700), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_appending_gives_the_answer_from_scratch(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(size) + 3 * rng.integers(3) for size in sizes]
    finder = ChangePointFinder()
    for part in parts:
        finder.append(part)
        finder.points()  # what it remembers must not change later answers
    assert finder.points() == change_points(np.concatenate(parts))


def test_appending_tests_the_tail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = ChangePointFinder()
    finder.append(np.random.default_rng(0).standard_normal(50_000))
    finder.points()
    tested = []
    from ratchet.guard.history import segments as module

    original = module.best_splits
    monkeypatch.setattr(
        module, "best_splits", lambda rows: tested.append(rows.size) or original(rows)
    )
    finder.append(np.zeros(1))
    finder.points()
    assert 0 < sum(tested) < 12 * 1024 * 2


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [3.0] * 500])
def test_series_that_hold_no_change(values: list[float]) -> None:
    assert change_points(np.asarray(values)) == []


def test_counts_that_jump_are_found() -> None:
    values = np.asarray([1000.0] * 30 + [1010.0] * 30)
    (point,) = change_points(values)
    assert (point.index, point.first, point.last) == (30, 30, 30)
    (shift,) = analyse_one(gather(rows(values))[0]).shifts
    assert (shift.index, shift.before, shift.after) == (30, 1000.0, 1010.0)


def test_a_bump_has_two_ends() -> None:
    values = np.random.default_rng(3).standard_normal(400)
    values[150:200] += 4
    assert [round(one.index / 10) for one in change_points(values)] == [15, 20]


def test_spikes_shorter_than_a_level_are_none() -> None:
    values = np.random.default_rng(4).standard_normal(200)
    values[60:62] += 30
    assert change_points(values) == []


@given(st.integers(8, 300), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_scores_depend_on_ranks_alone(length: int, seed: int) -> None:
    row = np.random.default_rng(seed).integers(0, 20, size=(1, length)).astype(float)
    np.testing.assert_allclose(normal_scores(row), normal_scores(np.exp(row)))
    assert abs(normal_scores(row).sum()) < 1e-6


@given(st.floats(1.5, 8), st.floats(0.01, 3), st.integers(9, 1024))
def test_a_larger_statistic_is_less_likely(z: float, more: float, length: int) -> None:
    low, high = p_value(np.asarray([z + more, z]), length)
    assert 0 <= low <= high <= 1


def test_correlation_is_estimated_through_a_step() -> None:
    rng = np.random.default_rng(6)
    rows = np.stack([_ar1(rng, 1000) for _ in range(10)])
    rows[:, 500:] += 3
    assert np.all(np.abs(correlation(normal_scores(rows)) - 0.5) < 0.15)


def test_a_known_place_needs_no_search() -> None:
    values = np.random.default_rng(7).standard_normal(60)
    values[30:] += 2
    assert step_at(values, 30) < 1e-4
    assert step_at(values, 3) == 1.0


def test_a_step_between_equal_medians_is_placed_where_ranks_find_it() -> None:
    """Coarse timings: the share of 9, 10 and 11 changes, and the median does not."""
    source = np.random.default_rng(5)
    before = source.choice([9.0, 10.0, 11.0], size=200, p=[0.35, 0.58, 0.07])
    after = source.choice([9.0, 10.0, 11.0], size=200, p=[0.07, 0.58, 0.35])
    assert np.median(before) == np.median(after)
    (found,) = change_points(np.concatenate([before, after]))
    assert abs(found.index - 200) <= 40
