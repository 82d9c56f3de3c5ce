"""Held-out problems are those on which the choice of a schedule matters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from simulated_bench import SMALL, SimulatedBench, tasks

from ratchet.judge.verdict import Screening
from ratchet.write.author import Proposal
from ratchet.write.learn.evaluate import HEADROOM_ANSWERS, with_headroom
from ratchet.write.learn.tasks import LearnTask


class FlatButFor(SimulatedBench):
    """All schedules of every problem but one take the same time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def outcomes(self, task: LearnTask, candidates: Sequence[Proposal]) -> list[Screening]:
        self.flat = task.name != self._name
        return super().outcomes(task, candidates)


def test_a_problem_that_any_schedule_solves_is_left_out() -> None:
    for one in tasks():
        (chosen,) = with_headroom(tasks(), FlatButFor(one.name), SMALL, most=1, seed=0)
        assert chosen.name == one.name


def test_no_problem_is_judged_where_all_are_wanted_or_no_time_is_left() -> None:
    bench = SimulatedBench()
    assert with_headroom(tasks(), bench, SMALL, most=2, seed=0) == list(tasks())
    late = with_headroom(tasks(), bench, SMALL, most=1, seed=0, until=time.monotonic() - 1)
    assert late == list(tasks()[:1]) and bench.judged == 0
    with_headroom(tasks(), bench, SMALL, most=1, seed=0)
    assert 2 < bench.judged <= 2 * HEADROOM_ANSWERS
