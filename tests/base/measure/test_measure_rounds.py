"""Arms run adjacent, once a round, in balanced random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ratchet.base.errors import MeasureError
from ratchet.base.measure import Sample, Timing
from ratchet.base.measure.rounds import orders, run_rounds


@dataclass
class RecordedArm:
    name: str
    log: list[str]
    wall_time_s: float = 1.0
    asked: list[int] = field(default_factory=list)

    def run(self, iterations: int) -> Timing:
        self.log.append(self.name)
        self.asked.append(iterations)
        return Timing(wall_time_s=self.wall_time_s * iterations, cpu_time_s=2.0 * iterations)


def two_arms(wall_time_s: float = 1.0) -> tuple[list[str], list[RecordedArm]]:
    log: list[str] = []
    return log, [RecordedArm("a", log, wall_time_s), RecordedArm("b", log)]


def test_each_round_holds_every_arm_once() -> None:
    log, arms = two_arms()
    samples = run_rounds(arms, rounds=7, launch=2, rng=np.random.default_rng(0))
    assert [s.round for s in samples] == [r for r in range(7) for _ in arms]
    assert all({log[2 * r], log[2 * r + 1]} == {"a", "b"} for r in range(7))
    assert [s.arm for s in samples] == log
    assert {s.launch for s in samples} == {2}
    assert [s.position for s in samples] == [0, 1] * 7


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_every_second_round_reverses_the_one_before(arms: int) -> None:
    found = orders(arms, rounds=41, rng=np.random.default_rng(3))
    assert len(found) == 41
    assert all(sorted(order) == list(range(arms)) for order in found)
    assert all(b == a[::-1] for a, b in zip(found[0:40:2], found[1:40:2], strict=True))
    assert len({tuple(order) for order in found[::2]}) > 1


def test_a_sample_is_the_time_of_one_iteration() -> None:
    _, arms = two_arms(wall_time_s=0.25)
    samples = run_rounds(
        arms, rounds=2, launch=0, rng=np.random.default_rng(0), iterations={"a": 4, "b": 3}
    )
    assert {(s.arm, s.iterations, s.wall_time_s, s.cpu_time_s) for s in samples} == {
        ("a", 4, 0.25, 2.0),
        ("b", 3, 1.0, 2.0),
    }
    assert arms[0].asked == [4, 4]


@pytest.mark.parametrize(("rounds", "run"), [(4, 4), (5, 5), (6, 6), (20, 6)])
def test_rounds_end_in_twos_once_it_is_enough(rounds: int, run: int) -> None:
    _, arms = two_arms()
    rng = np.random.default_rng(0)
    samples = run_rounds(arms, rounds=rounds, launch=0, rng=rng, enough=lambda: True)
    assert [s.round for s in samples] == [r for r in range(run) for _ in arms]


def test_on_round_sees_each_round_as_it_ends() -> None:
    seen: list[tuple[int, int]] = []

    def note(index: int, current: Sequence[Sample]) -> None:
        seen.append((index, len(current)))

    _, arms = two_arms()
    run_rounds(arms, rounds=3, launch=0, rng=np.random.default_rng(0), on_round=note)
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_no_time_is_refused(time_s: float) -> None:
    _, arms = two_arms(wall_time_s=time_s)
    with pytest.raises(MeasureError, match="arm 'a' reported"):
        run_rounds(arms, rounds=1, launch=0, rng=np.random.default_rng(0))


def test_bad_calls_are_refused() -> None:
    log, arms = two_arms()
    rng = np.random.default_rng(0)
    with pytest.raises(MeasureError, match="two or more"):
        run_rounds(arms[:1], rounds=1, launch=0, rng=rng)
    with pytest.raises(MeasureError, match="at least one"):
        run_rounds(arms, rounds=0, launch=0, rng=rng)
    with pytest.raises(MeasureError, match="share a name"):
        run_rounds([arms[0], RecordedArm("a", log)], rounds=1, launch=0, rng=rng)
