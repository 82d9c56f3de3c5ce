"""Groups of equal rows: as numpy finds them among stacked columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.trace.analysis.intervals import alike, sums_by


@pytest.mark.parametrize("scale", [1, 2**31, 2**61])
@given(rows=st.lists(st.tuples(*[st.integers(-2, 2)] * 4), min_size=1, max_size=40))
def test_groups_are_those_of_the_stacked_columns(
    scale: int, rows: list[tuple[int, int, int, int]]
) -> None:
    columns = np.array(rows, dtype=np.int64).T * scale
    first, group = alike(*columns)
    _, expected_first, expected = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    assert first.tolist() == expected_first.tolist()
    assert group.tolist() == expected.reshape(-1).tolist()


def test_no_rows_have_no_groups() -> None:
    none = np.zeros(0, dtype=np.int32)
    first, group = alike(none, none)
    assert (first.size, group.size) == (0, 0)


def test_sums_are_exact() -> None:
    values = np.array([2**52, 1, 5])
    assert sums_by(np.array([0, 0, 2]), values, 3).tolist() == [2**52 + 1, 0, 5]
