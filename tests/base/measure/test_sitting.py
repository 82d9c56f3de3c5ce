"""Pooled launches: what a sitting's pairs say of two ways of running a step."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.errors import MeasureError
from ratchet.base.measure import Sample
from ratchet.base.measure.sitting import MOST_PRIOR, Sitting, StartScatter, TimedTogether


def together(
    times_s: dict[str, list[float]],
    ways: dict[str, str],
    *,
    tag: str,
    processes: dict[str, str] | None = None,
) -> TimedTogether:
    """Rounds of processes by the times of each; their names are the arms' and a tag."""
    samples = [
        Sample(
            arm=arm,
            launch=0,
            round=index,
            position=0,
            iterations=1,
            wall_time_s=time_s,
            cpu_time_s=time_s,
        )
        for arm, times in times_s.items()
        for index, time_s in enumerate(times)
    ]
    named = {arm: f"{arm} {tag}" for arm in times_s} | (processes or {})
    return TimedTogether(samples=tuple(samples), processes=named, ways=ways)


SITTINGS = 2_500 if os.environ.get("RATCHET_TEST") == "all" else 300
TRIO = {"rival": "rival", "twin": "rival", "new": "new"}


def drawn(
    rng: np.random.Generator,
    *,
    launches: int,
    starts: float,
    gain: float = 1.0,
    noise: float = 0.03,
    screened: bool = True,
    rounds: int = 5,
) -> list[TimedTogether]:
    """A screening of two processes, then launches of three; each start has luck of its own."""
    found = []
    for launch in range(launches + screened):
        arms = ["rival", "new"] if screened and not launch else ["rival", "twin", "new"]
        level = {arm: rng.normal(0, starts) - math.log(gain) * (arm == "new") for arm in arms}
        times = {arm: list(np.exp(level[arm] + rng.normal(0, noise, rounds))) for arm in arms}
        ways = {arm: TRIO[arm] for arm in arms}
        found.append(together(times, ways, tag=str(launch)))
    return found


def test_what_is_equal_and_exact_is_that_ratio() -> None:
    sitting = Sitting(
        together({"rival": [2.0] * 5, "twin": [2.0] * 5, "new": [1.0] * 5}, TRIO, tag=str(tag))
        for tag in range(2)
    )
    found = sitting.compare("rival", "new")
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.answer == "faster"
    assert sitting.compare("new", "rival").answer == "slower"
    assert (found.launches, found.pairs) == (2, 20)


def test_one_launch_proves_nothing_at_any_ratio() -> None:
    known = StartScatter(variance=1e-8, freedom=100.0)
    times = {"rival": [9.0] * 9, "twin": [9.0] * 9, "new": [1.0] * 9}
    sitting = Sitting([together(times, TRIO, tag="only")], prior=known)
    assert sitting.compare("rival", "new").answer == "undecided"


def test_ways_that_were_never_timed_together_are_compared_through_a_third() -> None:
    both = {"written": "written", "rival": "rival"}
    first = together({"written": [4.0] * 5, "rival": [2.0] * 5}, both, tag="a")
    then = [
        together({"rival": [2.2] * 5, "twin": [2.2] * 5, "new": [1.1] * 5}, TRIO, tag=str(tag))
        for tag in range(2)
    ]
    sitting = Sitting([first, *then])
    found = sitting.compare("written", "new")
    assert found.ratio == pytest.approx(4.0)
    assert found.launches == 0 and found.answer == "undecided"  # one start of the step as written
    sitting.add(together({"written": [4.4] * 5, "rival": [2.2] * 5}, both, tag="b"))
    assert sitting.compare("written", "new").answer == "faster"


def test_a_process_timed_twice_is_one_process() -> None:
    ways = {"rival": "rival", "new": "new"}
    shared = {"rival": "the rival's process"}
    more = {"rival": "rival", "other": "other"}
    sitting = Sitting(
        [
            together({"rival": [2.0] * 5, "new": [1.0] * 5}, ways, tag="a", processes=shared),
            together({"rival": [3.0] * 5, "other": [1.0] * 5}, more, tag="b", processes=shared),
        ]
    )
    assert sitting.scatter().freedom == 0.0
    assert sitting.launches_of("rival", "new", "other") == 1
    assert sitting.compare("other", "new").ratio == pytest.approx(2 / 3)


def test_what_was_not_timed_is_an_error() -> None:
    ways = {"a": "a", "b": "b"}
    sitting = Sitting([together({"a": [1.0] * 5, "b": [1.0] * 5}, ways, tag="x")])
    with pytest.raises(MeasureError, match="'c' was not timed"):
        sitting.compare("a", "c")
    other = {"c": "c", "d": "d"}
    sitting.add(together({"c": [1.0] * 5, "d": [1.0] * 5}, other, tag="y"))
    with pytest.raises(MeasureError, match="never timed beside a common way"):
        sitting.compare("a", "c")


@given(
    own=st.floats(1e-6, 1.0),
    known=st.floats(1e-6, 1.0),
    freedom=st.floats(0.0, 50.0),
    more=st.floats(0.0, 50.0),
)
def test_what_the_ledger_knows_adds_freedom_and_never_takes_scatter_away(
    own: float, known: float, freedom: float, more: float
) -> None:
    found = StartScatter(variance=own, freedom=freedom).with_prior(
        StartScatter(variance=known, freedom=more)
    )
    assert found.variance >= own
    assert freedom <= found.freedom <= freedom + MOST_PRIOR


@pytest.mark.parametrize(
    ("screened", "prior"),
    [
        (True, None),
        (False, StartScatter(variance=0.03**2, freedom=20.0)),
        pytest.param(False, None, marks=pytest.mark.thorough),
        pytest.param(
            True, StartScatter(variance=0.03**2, freedom=20.0), marks=pytest.mark.thorough
        ),
    ],
)
def test_equal_ways_are_proven_faster_in_at_most_one_of_a_hundred_sittings(
    screened: bool, prior: StartScatter | None
) -> None:
    """Starts differ by 20 %; each sitting is looked at after every launch."""
    rng, false = np.random.default_rng(7), 0
    for _ in range(SITTINGS):
        sitting = Sitting(prior=prior)
        for timed in drawn(rng, launches=4, starts=0.2, screened=screened, rounds=3):
            sitting.add(timed)
            if len(sitting.timed) > 1 and sitting.compare("rival", "new").answer == "faster":
                false += 1
                break
    assert false <= 0.01 * SITTINGS + 3 * math.sqrt(0.01 * SITTINGS)  # three deviations of luck


def test_equal_ways_that_are_seldom_timed_together_are_as_seldom_proven_faster() -> None:
    """A turn times the step as written with the first rival, then in one launch beside the rest."""
    rng, false = np.random.default_rng(11), 0
    seen = (
        ("written", "rival"),
        ("rival", "new"),
        ("rival", "twin", "new"),
        ("rival", "twin", "new", "written"),
    )
    for _ in range(SITTINGS):
        sitting = Sitting()
        for tag, arms in enumerate(seen):
            level = {arm: rng.normal(0, 0.2) for arm in arms}
            times = {arm: list(np.exp(level[arm] + rng.normal(0, 0.03, 3))) for arm in arms}
            ways = {arm: TRIO.get(arm, arm) for arm in arms}
            sitting.add(together(times, ways, tag=str(tag)))
        false += sitting.compare("written", "new").answer == "faster"
    assert false <= 0.01 * SITTINGS + 3 * math.sqrt(0.01 * SITTINGS)


def test_a_gain_that_is_clear_is_found_in_few_launches() -> None:
    rng = np.random.default_rng(3)
    sittings = [Sitting(drawn(rng, launches=2, starts=0.03, gain=1.3)) for _ in range(100)]
    found = [one.compare("rival", "new") for one in sittings]
    assert sum(one.answer == "faster" for one in found) > 80
    assert sum(one.low <= 1.3 <= one.high for one in found) > 85
