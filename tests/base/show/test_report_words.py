"""Numbers and answers as people read them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_result import as_result, make_result

from ratchet.base.show import words
from ratchet.base.show.figures import Scale, around, from_zero
from ratchet.train.turn import comparisons
from ratchet.train.turn.optimize_result import CompileCost
from ratchet.train.turn.show import tiles


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [
        (2.214, "2.21 s"),
        (0.3067, "307 ms"),
        (45.1e-6, "45.1 µs"),
        (47.3, "47.3 s"),
        (1634.2, "27.2 min"),
        (9000.0, "2.5 h"),
        (0.0, "0 s"),
        (math.nan, "-"),
    ],
)
def test_a_time_has_its_unit(time_s: float, expected: str) -> None:
    assert words.show_time(time_s) == expected


def test_a_column_has_one_unit() -> None:
    unit = words.common_unit([2.214, 0.3067])
    assert [unit.show(2.214), unit.show(0.3067), unit.name] == ["2,214", "307", "ms"]
    assert words.common_unit([]).name == "s"
    assert words.common_unit([0.861, 0.000849]).name == "ms", "the largest stays below 10,000"


@given(st.floats(min_value=1e-9, max_value=1e5))
def test_a_time_keeps_its_first_two_digits(time_s: float) -> None:
    unit = words.common_unit([time_s])
    back_s = float(unit.show(time_s).replace(",", "")) * unit.size_s
    assert back_s == pytest.approx(time_s, rel=0.006)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "-"), (512, "512 B"), (32768, "32.0 KiB"), (24 << 30, "24.0 GiB"), (2**40, "1.00 TiB")],
)
def test_a_size_has_its_unit(size: int, expected: str) -> None:
    assert words.show_bytes(size) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, "-"), (0.034, "3.4%"), (0.38, "38%"), (math.nan, "-")]
)
def test_a_share_is_a_percentage(share: float, expected: str) -> None:
    assert words.show_share(share) == expected


@pytest.mark.parametrize(
    ("answer", "large", "note"),
    [
        ("faster", "1.10x", "faster; 95 % interval 1.01 to 1.20"),
        ("slower", "1.10x", "slower; 95 % interval 1.01 to 1.20"),
        ("equivalent", "no difference beyond noise", "1.10x, 95 % interval 1.01 to 1.20"),
        ("undecided", "looks faster, not proven", "1.10x, 95 % interval 1.01 to 1.20"),
    ],
)
def test_each_answer_has_its_words(answer: str, large: str, note: str) -> None:
    speedup = {"ratio": 1.1, "low": 1.01, "high": 1.2, "answer": answer}
    assert tile_of(speedup, {"low": 0.99, "high": 1.01}) == (large, note)


def tile_of(speedup: dict[str, Any], floor: dict[str, float]) -> tuple[Any, str]:
    """The large figure and the note of one comparison."""
    made = make_result(speedup={"vs_written": speedup}, floor=floor)
    (tile,) = tiles(as_result(made))
    return tile.large, tile.note


def test_a_ratio_inside_the_floor_is_undecided_whatever_it_is_called() -> None:
    speedup = {"ratio": 1.1, "low": 1.01, "high": 1.2, "answer": "faster"}
    large, note = tile_of(speedup, {"low": 0.8, "high": 1.25})
    assert (large, note) == ("no clear difference", "1.10x, 95 % interval 1.01 to 1.20")


SAME = {"ratio": 1.0, "low": 1.0, "high": 1.0, "answer": "equivalent"}


def test_a_recipe_that_is_its_rival_says_so_in_words() -> None:
    assert tile_of(SAME, {}) == ("the same step", "nothing faster was proven")
    speedup = make_result()["speedup"]
    said = comparisons.headline(as_result(make_result(speedup=speedup | {"vs_compile": SAME})))
    assert said == (
        "Nothing was proven faster for llama-60m than torch.compile's best, so that is the recipe. "
        "It runs 7.22x as fast as the step as written."
    )
    said = comparisons.headline(as_result(make_result(speedup=speedup | {"vs_written": SAME})))
    assert said == (
        "Nothing was proven faster than a step of llama-60m as written, so it stays as it is."
    )


def drifting(low_s: float, high_s: float) -> dict[str, Any]:
    """Make a result whose first launch was quiet, and whose others were not."""
    result = make_result()
    for one in result["samples"]:
        if one["arm"] == "as_written":
            one["wall_time_s"] = high_s if one["launch"] else low_s
    return result


def test_drift_is_told_apart_from_the_ratio() -> None:
    assert comparisons.drift_words(as_result(make_result())) is None
    assert comparisons.drift_words(as_result(drifting(2.0, 2.3))) is None  # within 20 %
    said = comparisons.drift_words(as_result(drifting(0.018, 0.265)))
    assert said is not None
    assert "the median step as written lies between 18.0 ms and 265 ms, by launch" in said
    assert "drift cancels in the ratios" in said


def test_a_wide_ratio_is_no_drift() -> None:
    result = drifting(1.0, 2.0)
    for speedup in result["speedup"].values():
        speedup |= {"low": speedup["ratio"] / 1.3, "high": speedup["ratio"] * 1.3}
    assert comparisons.drift_words(as_result(result)) is None


def test_the_headline_names_both_baselines() -> None:
    said = comparisons.headline(as_result(make_result()))
    assert said == (
        "With Ratchet, a step of llama-60m runs 1.83x as fast as torch.compile's best and 7.22x as "
        "fast as the step as written."
    )


def test_a_turn_that_compared_nothing_claims_nothing() -> None:
    said = comparisons.headline(as_result(make_result(speedup={})))
    assert said == "llama-60m was timed but not compared with anything."


@pytest.mark.parametrize(
    ("extra_s", "steps", "expected"),
    [
        (47.3, 25, "47.3 s later than the step as written and recovers that after 25 steps."),
        (1.0, 1, "after 1 step."),
        (1.0, None, "never recovers that, because its steps are no faster."),
        (-0.2, 0, "Ratchet starts no later than the step as written."),
    ],
)
def test_the_compile_time_is_weighed(extra_s: float, steps: int | None, expected: str) -> None:
    said = comparisons.compile_words(CompileCost(extra_setup_s=extra_s, pays_after_steps=steps))
    assert said.endswith(expected)


def test_a_moment_is_shown_in_utc() -> None:
    assert words.show_moment("2026-01-31T10:14:02+01:00") == "2026-01-31 09:14 UTC"
    assert words.show_moment("yesterday") == "yesterday"


_VALUES = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=2, max_size=20)


@given(_VALUES, st.booleans())
def test_a_scale_holds_its_values_in_order(values: list[float], log: bool) -> None:
    scale = around(values, log=log)
    places = [scale.percent(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)


@given(_VALUES, st.booleans())
def test_ticks_are_inside_and_few(values: list[float], log: bool) -> None:
    ticks = around(values, log=log).ticks(str)
    assert 1 <= len(ticks) <= 14
    percents = [tick.percent for tick in ticks]
    assert percents == sorted(set(percents))


def test_bars_begin_at_zero() -> None:
    scale = from_zero([1.0, 4.0])
    assert [scale.percent(value) for value in (0.0, 1.0, 4.0, 9.0)] == [0, 25, 100, 100]
    assert from_zero([]).percent(0.0) == 0
    assert Scale(low=1.0, high=100.0, log=True).percent(10.0) == 50
