"""Looks pay for themselves: published boundaries, and the error they really let through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from ratchet.errors import MeasureError
from ratchet.measure import Looks
from ratchet.measure.looks import boundaries, spent


def test_boundaries_match_the_published_table() -> None:
    # Five equal looks at a two-sided 0.05: ldbounds' and gsDesign's documented values.
    found = boundaries((1, 2, 3, 4, 5), 0.05)
    assert found == pytest.approx((4.8769, 3.3570, 2.6803, 2.2898, 2.0310), abs=2e-4)


def test_one_look_is_the_plain_confidence() -> None:
    assert Looks(planned=(30,), alpha=0.05).confidence_at(0) == pytest.approx(0.95)


def test_error_over_all_looks_is_alpha() -> None:
    planned = (10, 20, 30, 60)
    bounds = np.asarray(boundaries(planned, 0.05))
    increments = np.random.default_rng(0).normal(size=(200_000, planned[-1]))
    sums = np.cumsum(increments, axis=1)[:, np.asarray(planned) - 1]
    crossed = np.any(np.abs(sums) / np.sqrt(planned) > bounds, axis=1)
    assert crossed.mean() == pytest.approx(0.05, abs=0.002)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True).map(sorted),
    st.floats(0.01, 0.2),
)
def test_looks_get_easier_and_never_cheaper_than_alpha(planned: list[int], alpha: float) -> None:
    looks = Looks(planned=tuple(planned), alpha=alpha)
    levels = [looks.confidence_at(index) for index in range(len(planned))]
    assert all(level >= 1 - alpha - 1e-9 for level in levels)
    # No look spends more than alpha, and all of them together spend at least it.
    assert sum(1 - level for level in levels) >= alpha - 1e-6


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.2))
def test_spending_rises_to_alpha(fraction: float, alpha: float) -> None:
    assert spent(fraction / 2, alpha) <= spent(fraction, alpha) < alpha
    assert spent(1.0, alpha) == pytest.approx(alpha)


def test_levels_are_of_the_boundaries() -> None:
    looks = Looks(planned=(10, 20), alpha=0.05)
    bound = boundaries((10, 20), 0.05)[0]
    assert looks.confidence_at(0) == pytest.approx(1 - 2 * special.ndtr(-bound))


def test_unplanned_looks_are_refused() -> None:
    with pytest.raises(MeasureError, match="look 2 was not planned"):
        Looks(planned=(10, 20)).confidence_at(2)
    with pytest.raises(MeasureError, match="that rise"):
        Looks(planned=(20, 10))
    with pytest.raises(MeasureError, match="that rise"):
        Looks(planned=())
    with pytest.raises(MeasureError, match="alpha 0"):
        Looks(planned=(10,), alpha=0)
