"""Sizes and indices: simplification, and agreement with Python's whole numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratchet.write.form.extent import (
    Extent,
    at_least,
    divisors_of,
    flattened,
    named,
    smaller,
    unflattened,
    whole,
)

ROWS, COLUMNS = named("rows"), named("columns")


def test_equal_polynomials_are_equal() -> None:
    assert ROWS * (COLUMNS + 2) == COLUMNS * ROWS + ROWS * 2
    assert whole(0) == ROWS - ROWS


def test_an_index_is_found_again_from_its_position() -> None:
    row, column = named("i", ROWS), named("j", COLUMNS)
    position = flattened((row, column), (ROWS, COLUMNS))
    assert position // COLUMNS == row
    assert position % COLUMNS == column


def test_a_position_is_found_again_from_its_index() -> None:
    place = named("n", ROWS * COLUMNS)
    index = unflattened(place, (ROWS, COLUMNS))
    assert flattened(index, (ROWS, COLUMNS)) == place


def test_bounds_come_from_loop_variables() -> None:
    row = named("i", ROWS)
    assert at_least(ROWS - row, 1)
    assert not at_least(row - 1, 0)
    assert smaller(row, ROWS) == row


def test_a_factor_is_found_only_where_it_is_linear() -> None:
    row, column = named("i", ROWS), named("j", COLUMNS)
    assert (row * COLUMNS + column).factor_of("i") == COLUMNS
    assert (row // 3).factor_of("i") is None


SIZES = st.integers(1, 7)
PLACES = st.integers(0, 40)


@given(SIZES, SIZES, PLACES, st.integers(1, 5), st.integers(0, 5))
def test_text_is_the_number(rows: int, columns: int, at: int, by: int, more: int) -> None:
    place = named("n", ROWS * COLUMNS * 9)
    made: list[Extent] = [
        (place * by + more) // COLUMNS,
        (place * by + more) % (COLUMNS * 2),
        smaller(place, COLUMNS) * by + place // by // COLUMNS,
        flattened(unflattened(place, (ROWS, whole(by), COLUMNS)), (ROWS, whole(by), COLUMNS)),
    ]
    n = at % (rows * columns * 9)
    want = [
        (n * by + more) // columns,
        (n * by + more) % (columns * 2),
        min(n, columns) * by + n // by // columns,
        n,
    ]
    values = {"n": n, "rows": rows, "columns": columns, "whole_min": min, "whole_max": max}
    found = [eval(one.text.replace("/", "//"), {}, values) for one in made]
    assert found == want


def test_rounding_up_to_a_multiple_is_simple() -> None:
    padded = ROWS + (ROWS * -1) % 128
    groups = padded // 128
    assert groups == (ROWS - 1) // 128 + 1
    assert padded // groups == whole(128)
    assert padded % 128 == whole(0)
    place = named("n", ROWS)
    assert place // 128 * 128 + place % 128 == place


@given(st.integers(1, 1000), st.integers(1, 200))
def test_what_is_missing_to_a_multiple_is_the_remainder(rows: int, size: int) -> None:
    missing = (ROWS * -1) % size
    assert missing.replace({"rows": whole(rows)}) == whole(-rows % size)


def test_a_place_is_put_together_again() -> None:
    place = named("i", ROWS * COLUMNS * 8)
    row, column, item = unflattened(place, (ROWS, COLUMNS, whole(8)))
    assert row * COLUMNS * 8 + column * 8 + item == place
    assert row * COLUMNS * 3 + (place // 8 % COLUMNS) * 3 == place // 8 * 3


def test_divisors_of_a_variable_alone() -> None:
    place = named("i", COLUMNS * 12)
    other = named("k", ROWS)
    index = (place // 12) * 5 + place % 3 + (place + other) // 4
    assert divisors_of([index], "i") == {whole(12), whole(3)}
    assert divisors_of([index], "k") == set()
