"""Properties that the estimate must have whatever the times are."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.base.errors import MeasureError
from ratchet.base.measure import (
    WIDEST,
    Floor,
    Ratio,
    Sample,
    answer_of,
    noise_of,
    why_undecided,
)
from ratchet.base.measure.estimate import aa_floor, bootstrap_medians, compare, summarise

TIMES_S = st.floats(min_value=1e-6, max_value=1e3)
RESAMPLES = 200


@st.composite
def paired_samples(draw: st.DrawFn, arms: tuple[str, ...] = ("a", "b")) -> list[Sample]:
    launches = draw(st.integers(1, 4))
    rounds = draw(st.integers(2, 8))
    return [
        sample(arm, launch, index, draw(TIMES_S))
        for launch in range(launches)
        for index in range(rounds)
        for arm in arms
    ]


def sample(arm: str, launch: int, index: int, wall_time_s: float) -> Sample:
    return Sample(
        arm=arm,
        launch=launch,
        round=index,
        position=0,
        iterations=1,
        wall_time_s=wall_time_s,
        cpu_time_s=2 * wall_time_s,
    )


def noisy(
    effect: float, *, launches: int = 3, rounds: int = 20, noise: float = 0.02
) -> list[Sample]:
    """Arms a, twin (the same) and b (faster by `effect`), with noise from a fixed seed."""
    rng = np.random.default_rng(11)
    scales = {"a": 1.0, "twin": 1.0, "b": 1 / effect}
    return [
        sample(arm, launch, index, scale * float(np.exp(rng.normal(0, noise))))
        for launch in range(launches)
        for index in range(rounds)
        for arm, scale in scales.items()
    ]


def ratio_of(samples: list[Sample], baseline: str = "a", new: str = "b") -> Ratio:
    return compare(samples, baseline=baseline, new=new, floor=None, resamples=RESAMPLES)


@settings(max_examples=60, deadline=None)
@given(paired_samples(), st.floats(min_value=1e-3, max_value=1e3))
def test_the_unit_of_time_does_not_matter(samples: list[Sample], scale: float) -> None:
    scaled = [replace(s, wall_time_s=s.wall_time_s * scale) for s in samples]
    one, other = ratio_of(samples), ratio_of(scaled)
    assert other.ratio == pytest.approx(one.ratio, rel=1e-6)
    assert other.low == pytest.approx(one.low, rel=1e-4)
    assert other.high == pytest.approx(one.high, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(paired_samples())
def test_swapping_the_arms_inverts_the_ratio(samples: list[Sample]) -> None:
    forth, back = ratio_of(samples), ratio_of(samples, "b", "a")
    assert back.ratio == pytest.approx(1 / forth.ratio, rel=1e-9)
    assert back.low == pytest.approx(1 / forth.high, rel=1e-6)
    assert back.high == pytest.approx(1 / forth.low, rel=1e-6)
    mirrored = {"faster": "slower", "slower": "faster"}
    assert back.answer == mirrored.get(forth.answer, forth.answer)


@settings(max_examples=60, deadline=None)
@given(paired_samples())
def test_the_interval_holds_the_estimate(samples: list[Sample]) -> None:
    found = ratio_of(samples)
    assert 0 < found.low <= found.ratio <= found.high < float("inf")
    median_log = np.median(
        [
            np.log(a.wall_time_s / b.wall_time_s)
            for a, b in zip(samples[::2], samples[1::2], strict=True)
        ]
    )
    assert found.ratio == pytest.approx(float(np.exp(median_log)), rel=1e-9)
    summary = summarise(samples, "a", resamples=RESAMPLES)
    assert summary.low_s <= summary.median_s <= summary.high_s


@settings(max_examples=60, deadline=None)
@given(paired_samples(), st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(
    samples: list[Sample], shuffler: random.Random
) -> None:
    shuffled = list(samples)
    shuffler.shuffle(shuffled)
    assert ratio_of(shuffled) == ratio_of(samples)
    assert summarise(shuffled, "a", resamples=RESAMPLES) == summarise(
        samples, "a", resamples=RESAMPLES
    )


@settings(max_examples=60, deadline=None)
@given(paired_samples(arms=("a",)))
def test_identical_arms_are_never_faster(samples: list[Sample]) -> None:
    copies = [replace(s, arm="b") for s in samples]
    twins = [replace(s, arm="twin") for s in samples]
    floor = aa_floor(samples + twins, "a", "twin", resamples=RESAMPLES)
    found = compare(samples + copies, baseline="a", new="b", floor=floor, resamples=RESAMPLES)
    assert (found.ratio, found.low, found.high) == (1, 1, 1)
    assert found.answer == "equivalent"
    assert ratio_of(samples + copies).answer == "undecided"


@settings(max_examples=60, deadline=None)
@given(paired_samples(arms=("a", "twin", "b")))
def test_no_gain_inside_the_floor_is_an_answer(samples: list[Sample]) -> None:
    floor = aa_floor(samples, "a", "twin", resamples=RESAMPLES)
    assert floor.low <= 1 <= floor.high
    assert floor.low == pytest.approx(1 / floor.high)
    found = compare(samples, baseline="a", new="b", floor=floor, resamples=RESAMPLES)
    if floor.low <= found.ratio <= floor.high:
        assert found.answer in ("equivalent", "undecided")


@settings(max_examples=40, deadline=None)
@given(paired_samples(), st.floats(0.5, 0.98))
def test_more_confidence_is_a_wider_interval(samples: list[Sample], confidence: float) -> None:
    narrow, wide = (
        compare(samples, baseline="a", new="b", floor=None, confidence=level, resamples=RESAMPLES)
        for level in (confidence, (1 + confidence) / 2)
    )
    assert wide.low <= narrow.low
    assert wide.high >= narrow.high


def test_a_real_gain_is_found_and_counted() -> None:
    samples = noisy(1.2)
    floor = aa_floor(samples, "a", "twin")
    found = compare(samples, baseline="a", new="b", floor=floor)
    assert found.answer == "faster"
    assert found.low < 1.2 < found.high
    assert (found.pairs, found.launches, found.confidence) == (60, 3, 0.95)
    assert compare(samples, baseline="b", new="a", floor=floor).answer == "slower"
    assert floor.pairs == 60


def test_one_launch_says_so() -> None:
    assert ratio_of(noisy(1.2, launches=1)).launches == 1


def test_two_launches_get_a_very_wide_interval() -> None:
    widths = [np.log(f.high / f.low) for n in (1, 2, 3) for f in [ratio_of(noisy(1.2, launches=n))]]
    assert widths[1] > 2 * max(widths[0], widths[2])


def test_rounds_that_lack_an_arm_are_left_out() -> None:
    samples = noisy(1.2)
    found = ratio_of([s for s in samples if not (s.arm == "b" and s.round >= 15)])
    assert found.pairs == 45


@pytest.mark.parametrize(
    ("ratio", "low", "high", "answer"),
    [
        (1.10, 1.05, 1.15, "faster"),
        (0.90, 0.85, 0.95, "slower"),
        (1.01, 0.99, 1.02, "equivalent"),
        (1.01, 1.005, 1.015, "equivalent"),
        (1.01, 0.95, 1.07, "undecided"),
        (1.019, 1.001, 1.04, "undecided"),
        (1.10, 0.95, 1.25, "undecided"),
    ],
)
def test_the_four_answers(ratio: float, low: float, high: float, answer: str) -> None:
    floor = Floor(low=1 / 1.02, high=1.02, pairs=60)
    assert answer_of(ratio, low, high, floor) == answer


@pytest.mark.parametrize(
    ("ratio", "low", "high", "reach", "answer", "why"),
    [
        (1.0, 0.54, 1.74, 2.0, "undecided", "too noisy (interval 0.54 to 1.74, A/A 0.50 to 2.00)"),
        (1.0, 0.95, 1.12, 1.61, "undecided", "too noisy (A/A 0.62 to 1.61)"),
        (1.3, 1.25, 1.35, 6.7, "undecided", "too noisy (A/A 0.15 to 6.70)"),
        (1.2, 0.8, 1.8, 1.02, "undecided", "too noisy (interval 0.80 to 1.80, A/A 0.98 to 1.02)"),
        (1.0, 1 / WIDEST, WIDEST, 1.61, "equivalent", ""),
        (1.01, 0.97, 1.05, 1.02, "undecided", "within the noise (A/A 0.98 to 1.02)"),
        (1.04, 0.99, 1.09, 1.02, "undecided", "the interval holds 1 (0.99 to 1.09)"),
        (1.3, 1.1, 1.6, 1.02, "faster", ""),
    ],
)
def test_a_noisy_answer_is_no_answer(
    ratio: float, low: float, high: float, reach: float, answer: str, why: str
) -> None:
    floor = Floor(low=1 / reach, high=reach, pairs=60)
    assert answer_of(ratio, low, high, floor) == answer
    if answer == "undecided":
        said = why_undecided(ratio, low, high, floor)
        assert why in said
        assert bool(noise_of(low, high, floor)) is ("too noisy" in said)


@settings(max_examples=60, deadline=None)
@given(paired_samples(arms=("a", "twin", "b")))
def test_whatever_the_times_equivalence_is_narrow_and_an_undecided_answer_says_why(
    samples: list[Sample],
) -> None:
    floor = aa_floor(samples, "a", "twin", resamples=RESAMPLES)
    found = compare(samples, baseline="a", new="b", floor=floor, resamples=RESAMPLES)
    assert bool(found.why) is (found.answer == "undecided")
    if found.answer == "equivalent":
        assert 1 / WIDEST <= found.low <= found.high <= WIDEST
    if found.noise:
        assert found.answer == "undecided" and found.noise in found.why


def test_without_a_floor_nothing_is_equivalent() -> None:
    assert answer_of(1.0, 0.999, 1.001, None) == "undecided"


def test_resamples_stay_within_their_launch() -> None:
    launches = [np.full(5, 1.0), np.full(9, 2.0), np.full(7, 3.0)]
    fixed = bootstrap_medians(launches, 300, 0, resample_launches=False)
    assert set(fixed) == {2.0}
    assert set(bootstrap_medians(launches, 300, 0)) == {1.0, 2.0, 3.0}


def test_summary_is_the_median_of_all_samples() -> None:
    found = summarise([sample("a", 0, r, 0.1 * (r + 1)) for r in range(5)], "a")
    assert found.median_s == pytest.approx(0.3)
    assert found.count == 5


def test_too_little_to_answer_is_refused() -> None:
    with pytest.raises(MeasureError, match="at least 2; run more rounds"):
        ratio_of([sample("a", 0, 0, 1.0), sample("b", 0, 0, 1.0)])
    with pytest.raises(MeasureError, match="no samples of arm 'b'"):
        ratio_of([sample("a", 0, 0, 1.0)])
    with pytest.raises(MeasureError, match="needs 2"):
        summarise([sample("a", 0, 0, 1.0)], "a")
    with pytest.raises(MeasureError, match="appears twice"):
        ratio_of([sample("a", 0, 0, 1.0), sample("a", 0, 0, 2.0), sample("b", 0, 0, 1.0)])
    with pytest.raises(MeasureError, match=r"confidence 1\.5"):
        compare(noisy(1.1), baseline="a", new="b", floor=None, confidence=1.5)
    with pytest.raises(MeasureError, match="5 resamples"):
        compare(noisy(1.1), baseline="a", new="b", floor=None, resamples=5)
