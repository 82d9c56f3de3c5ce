"""Launches are opened one by one, and looks are taken until one settles the question."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ratchet.base.measure import ArmLeft, Sample, Timing
from ratchet.base.measure.contest import CompareSettings, compare_contest, confidence_of
from ratchet.base.measure.metrics import BASELINE, NEW, TIME, TWIN, Readings
from ratchet.base.measure.rounds import OpenLaunch, run_launches, run_rounds, until_settled


@dataclass
class CountingArm:
    """An arm that takes made-up time; it leaves in its run number `leaves`."""

    name: str
    time_s: float = 1.0
    leaves: int = -1
    runs: int = 0

    def run(self, iterations: int) -> Timing:
        if self.runs == self.leaves:
            raise ArmLeft
        self.runs += 1
        return Timing(wall_time_s=self.time_s * iterations, cpu_time_s=0.0)


@dataclass
class Launches:
    """Two arms in each launch; the last launch may have no time for rounds."""

    rounds: dict[int, int]
    log: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def open(self, launch: int) -> Iterator[OpenLaunch]:
        self.log.append(f"open {launch}")
        yield OpenLaunch(
            arms=[CountingArm("a"), CountingArm("b")], rounds=self.rounds[launch], iterations=2
        )
        self.log.append(f"close {launch}")

    def keep(self, samples: Sequence[Sample]) -> None:
        numbers = {(one.launch, one.iterations) for one in samples}
        self.log.append(f"{len(samples)} samples of {numbers}")


def test_each_launch_is_opened_measured_kept_and_closed() -> None:
    launches = Launches({3: 2, 4: 4, 5: 0})
    rng = np.random.default_rng(0)
    run_launches(launches.open, more=lambda at: at < 6, rng=rng, first=3, keep=launches.keep)
    assert launches.log == [
        *("open 3", "4 samples of {(3, 2)}", "close 3"),
        *("open 4", "8 samples of {(4, 2)}", "close 4"),
        *("open 5", "close 5"),
    ]


@pytest.mark.parametrize(
    ("settles_at", "room", "looks"), [(0, 9, 0), (2, 9, 2), (9, 3, 3), (9, 0, 0)]
)
def test_looks_end_once_settled_or_without_room(settles_at: int, room: int, looks: int) -> None:
    taken: list[int] = []

    def take(look: int) -> bool:
        if look < room:
            taken.append(look)
        return look < room

    assert until_settled(take, lambda look: look == settles_at) == looks
    assert taken == list(range(looks))


def test_an_arm_that_leaves_is_timed_no_more() -> None:
    arms = [CountingArm("a"), CountingArm("b"), CountingArm("c", leaves=3)]
    rng = np.random.default_rng(0)

    def leave(index: int, samples: Sequence[Sample]) -> set[str]:
        assert {one.round for one in samples} == set(range(index))
        return {"b"} if index == 5 else set()

    samples = run_rounds(arms, rounds=9, launch=0, rng=rng, leave=leave)
    rounds = {name: [s.round for s in samples if s.arm == name] for name in "abc"}
    assert rounds == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4], "c": [0, 1, 2]}
    assert all(s.position < 2 for s in samples if s.round > 3)


def test_one_arm_is_timed_alone_where_that_is_allowed() -> None:
    arms = [CountingArm("a"), CountingArm("b", leaves=1)]
    rng = np.random.default_rng(0)
    samples = run_rounds(arms, rounds=4, launch=0, rng=rng, fewest_arms=1)
    assert sorted((s.arm, s.round) for s in samples) == [
        *(("a", index) for index in range(4)),
        ("b", 0),
    ]


def test_the_rate_of_false_answers_is_shared_by_looks_and_answers() -> None:
    assert 1 - confidence_of(0.05) == pytest.approx(0.05)
    assert 1 - confidence_of(0.05, looks=3) == pytest.approx(0.05 / 3)
    assert 1 - confidence_of(0.05, looks=3, among=10) == pytest.approx(0.05 / 30)
    assert confidence_of(0.05, among=0) == confidence_of(0.05)


class MadeUpContest:
    """Sides whose times are made up; a round takes as long as it is said to."""

    titles = ("old", "new")
    metrics = (TIME,)

    def __init__(self, slowdown: float, round_s: float = 0.001) -> None:
        self._times = {BASELINE: 1.0, TWIN: 1.0, NEW: slowdown}
        self._round_s = round_s
        self._rng = np.random.default_rng(5)
        self.opened: list[int] = []

    @contextlib.contextmanager
    def open(self, launch: int, limit_s: float) -> Iterator[list[CountingArm]]:
        self.opened.append(launch)
        yield [CountingArm(name, time_s) for name, time_s in self._times.items()]

    def first_round_s(self) -> float:
        return self._round_s

    def iterations(self) -> dict[str, int]:
        return dict.fromkeys(self._times, 1)

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        for one in samples:
            time_s = one.wall_time_s * float(np.exp(0.001 * self._rng.normal()))
            readings.add(TIME.name, one.arm, one.launch, one.round, time_s)


def test_a_comparison_ends_at_the_first_look_that_settles_it() -> None:
    contest, kept = MadeUpContest(1.5), list[Sample]()
    outcome = compare_contest(contest, CompareSettings(budget_s=60.0), on_samples=kept.extend)
    assert outcome.plan is not None
    assert outcome.exit_code == 1 and outcome.looks_taken == 1
    assert contest.opened == list(range(outcome.plan.looks[0]))
    assert len(kept) == len(outcome.samples) == 3 * outcome.plan.rounds * outcome.plan.looks[0]


def test_a_comparison_takes_every_look_before_it_stays_undecided() -> None:
    contest = MadeUpContest(1.0005)
    settings = CompareSettings(budget_s=60.0, allowed=0.0005)
    outcome = compare_contest(contest, settings)
    assert outcome.plan is not None
    assert outcome.exit_code == 3 and outcome.looks_taken == len(outcome.plan.looks)
    assert outcome.launches == outcome.plan.launches == len(contest.opened)


def test_a_comparison_without_time_for_six_pairs_says_what_it_needs() -> None:
    contest = MadeUpContest(1.5, round_s=10.0)
    outcome = compare_contest(contest, CompareSettings(budget_s=30.0))
    assert outcome.exit_code == 3 and not outcome.answers and contest.opened == [0]
    assert outcome.needed_s is not None and outcome.needed_s > 60.0
