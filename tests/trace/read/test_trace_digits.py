"""Times keep every nanosecond, whatever the writer's form."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.trace.read.times import MISSING, nanoseconds

EPOCH_NS = 1_661_938_466_265_032_123


def test_an_epoch_stamp_keeps_what_a_double_loses() -> None:
    assert nanoseconds([b"1661938466265032.123"])[0] == EPOCH_NS
    assert round(float("1661938466265032.123") * 1000) != EPOCH_NS


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**61 - 1), st.integers(0, 3)), min_size=1, max_size=30))
def test_any_mix_of_decimals_is_exact(numbers: list[tuple[int, int]]) -> None:
    tokens, expected = [], []
    for value, decimals in numbers:
        cut = value // 10 ** (3 - decimals) * 10 ** (3 - decimals)
        tokens.append(f"{Decimal(cut) / 1000:.{decimals}f}".encode())
        expected.append(cut)
    assert nanoseconds(tokens).tolist() == expected


@pytest.mark.parametrize(
    ("token", "value"),
    [(b"-1.5", -1500), (b"1e3", 1_000_000), (b'"7"', 7000), (b"0.0004", 0), (b"2.0006", 2001)],
)
def test_unusual_forms(token: bytes, value: int) -> None:
    assert nanoseconds([token, b"1"]).tolist() == [value, 1000]


@pytest.mark.parametrize(
    "token",
    [b"", b"null", b"[1,2]", b"1.2.3", b"true", b"1e99", b"9" * 40, b"9" * 16, b"8" * 16, b"."],
)
def test_what_is_no_time_is_missing(token: bytes) -> None:
    assert nanoseconds([b"1.5", token]).tolist() == [1500, MISSING]


def test_no_tokens() -> None:
    assert nanoseconds([]).dtype == np.int64
