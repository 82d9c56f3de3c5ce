"""Searches find good schedules of a space whose times are known, and beat random search."""

from __future__ import annotations

import functools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_space import CHOICES, MadeUpSpace, RandomSearch, made_up_problem, screened

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.write.author import Answer, Progress, Schedule
from ratchet.write.effort import ETA, RUNGS, Rungs, floor_s
from ratchet.write.search import (
    CostModel,
    Earlier,
    Evolution,
    Experience,
    ScoredSchedule,
    SearchAuthor,
    differences,
)


def search(
    space: MadeUpSpace,
    *,
    author: type[RandomSearch] | None = None,
    seed: int,
    count: int,
    noise: float = 0.03,
    experience: Experience | None = None,
    name: str = "made_up",
) -> list[Answer]:
    """Run an author against the truth with a little noise; the answers in their order."""
    asked = (
        author(space, seed=seed)
        if author
        else SearchAuthor(space, seed=seed, experience=experience)
    )
    progress = Progress(problem=made_up_problem(name, space.size))
    luck = random.Random(seed)
    while len(progress.answers) < count:
        proposals = asked.propose(progress, min(8, count - len(progress.answers)))
        if not proposals:
            break
        for one in proposals:
            ratio = math.exp(space.log_ratio(one.schedule) + luck.gauss(0, noise))
            progress.answers.append(screened(one, ratio, time_s=1e-3 * space.size / 256 / ratio))
    return progress.answers


def truth(space: MadeUpSpace, answers: list[Answer]) -> float:
    """The true logarithm of the kernel that was screened best."""
    best = max(answers, key=lambda one: one.ratio or 0.0)
    return space.log_ratio(best.schedule)


@functools.cache
def found_by(author: type[RandomSearch] | None = None) -> float:
    """The true logarithm of what an author finds, in the mean over eight seeds."""
    space = MadeUpSpace()
    return statistics.mean(
        truth(space, search(space, author=author, seed=seed, count=64)) for seed in range(8)
    )


def test_a_search_beats_random_search_at_equal_candidates() -> None:
    found = found_by()
    assert found > found_by(RandomSearch) + 0.02
    assert found > MadeUpSpace().best() - 0.08


def test_no_schedule_is_proposed_twice() -> None:
    answers = search(MadeUpSpace(), seed=2, count=96)
    schedules = [one.schedule for one in answers]
    assert len(schedules) == len(set(schedules)) == 96


def test_a_small_space_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(CHOICES):
        if name not in ("online", "store"):
            monkeypatch.setitem(CHOICES, name, CHOICES[name][:1])
    space = MadeUpSpace()
    monkeypatch.setattr(space, "log_ratio", lambda schedule: 0.0)
    monkeypatch.setattr(space, "change", lambda schedule, source: space.draw(source))
    answers = search(space, seed=0, count=50)
    assert len(answers) == 4


def test_a_schedule_that_gives_no_kernel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    space = MadeUpSpace()
    make = space.kernel

    def kernel(schedule: Schedule) -> Kernel:
        if dict(schedule)["tile"] == "256":
            raise KernelError("tiles of 256 do not fit: use smaller ones")
        return make(schedule)

    monkeypatch.setattr(space, "kernel", kernel)
    answers = search(space, seed=1, count=40)
    assert len(answers) == 40
    assert all(dict(one.schedule)["tile"] != "256" for one in answers)


def test_what_helped_alone_is_joined_first() -> None:
    space = MadeUpSpace()
    (middle,) = space.first()
    alone = [
        tuple(sorted({**dict(middle), name: value}.items()))
        for name, values in CHOICES.items()
        for value in values
        if value != dict(middle)[name]
    ]
    scores = {one: space.log_ratio(one) for one in [middle, *alone]}
    trials = [ScoredSchedule(schedule=one, score=score) for one, score in scores.items()]
    (move,) = Evolution(space, random.Random(0)).ask(trials, 1)
    assert move.note.startswith("the best of each choice: ")
    assert space.log_ratio(move.schedule) > max(scores.values())


def test_children_name_their_parents_and_what_is_new() -> None:
    answers = search(MadeUpSpace(), seed=4, count=64)
    hashes = [one.kernel_hash for one in answers]
    children = [one for one in answers if one.parents]
    assert len(children) > 20
    for child in children:
        assert all(hashes.index(p) < hashes.index(child.kernel.hash) for p in child.parents)
        assert "->" in child.note


def test_a_resumed_search_goes_on_and_repeats_nothing() -> None:
    space = MadeUpSpace()
    before = search(space, seed=4, count=32)
    again = SearchAuthor(space, seed=4)
    progress = Progress(problem=made_up_problem(), answers=list(before))
    known = {one.schedule for one in before}
    assert known.isdisjoint(one.schedule for one in again.propose(progress, 16))


def test_differences_are_told() -> None:
    assert differences((("tile", "8"), ("vec", "4")), (("tile", "16"), ("vec", "4"))) == (
        "tile 8 -> 16"
    )


# The cost model and what earlier runs give.


def earlier_runs(*sizes: int, count: int = 60) -> Experience:
    found = []
    for size in sizes:
        space = MadeUpSpace(size)
        for one in search(space, author=RandomSearch, seed=size, count=count, name=f"p{size}"):
            found.append(
                Earlier(
                    problem=f"p{size}",
                    kernel=one.kernel_hash,
                    schedule=one.schedule,
                    features=one.features,
                    time_s=one.time_s or 0.0,
                    right=True,
                )
            )
    return Experience(found)


def test_the_cost_model_ranks_schedules_of_a_problem_it_has_not_seen() -> None:
    model = CostModel.fit(earlier_runs(128, 200, 300).earlier)
    assert model is not None
    space, source = MadeUpSpace(256), random.Random(0)
    drawn = [space.draw(source) for _ in range(200)]
    predicted = model.predict([space.features(one) for one in drawn])
    true = np.asarray([-space.log_ratio(one) for one in drawn])
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, true)]
    assert np.corrcoef(*ranks)[0, 1] > 0.5


def test_too_few_examples_give_no_model() -> None:
    assert CostModel.fit([]) is None
    assert CostModel.fit([Earlier(problem="p", features=(1.0,), time_s=1.0)] * 3) is None


def test_a_similar_problem_s_best_schedule_comes_first() -> None:
    experience = earlier_runs(200, 300)
    space = MadeUpSpace(256)
    first = search(space, seed=0, count=8, experience=experience)
    notes = [one.note for one in first[:3]]
    assert all("similar problem" in note for note in notes)
    plain = search(space, seed=0, count=8)
    assert truth(space, first) > truth(space, plain)


def test_the_same_problem_s_best_schedule_comes_before_all_others() -> None:
    problem = made_up_problem("made_up", 256).hash
    best = MadeUpSpace().first()[0]
    own = Earlier(
        problem=problem,
        kernel="k",
        schedule=best,
        features=MadeUpSpace().features(best),
        time_s=1e-4,
        right=True,
    )
    experience = Experience([*earlier_runs(200).earlier, own])
    first = search(MadeUpSpace(256), seed=0, count=4, experience=experience)
    assert first[0].schedule == best
    assert "this problem" in first[0].note


# Successive halving.


def test_the_best_quarter_climbs() -> None:
    rungs = Rungs()
    for index in range(2 * ETA):
        rungs.record(str(index), index / 10)
    assert rungs.climbing() == [("7", 1), ("6", 1)]
    rungs.record("7", 0.7)
    rungs.record("6", 0.0)  # it was luck: another takes its place
    assert rungs.climbing() == [("5", 1)]


def test_a_lucky_kernel_falls_back_and_a_wrong_one_leaves() -> None:
    rungs = Rungs()
    for index in range(8):
        rungs.record(str(index), 0.1 * index)
    assert rungs.order()[0] == "7"
    rungs.record("7", 0.0)
    assert rungs.order()[0] == "6"
    rungs.record("6", None)
    assert "6" not in rungs.order()


def test_one_lucky_screening_is_not_believed() -> None:
    rungs = Rungs()
    for index in range(12):
        rungs.record(str(index), 0.2 * (-1) ** index)
    for score in (0.1, 0.12, 0.14, 0.1):
        rungs.record("good", score)
    for index in range(0, 12, 2):
        rungs.record(str(index), -0.2)
    assert rungs.order()[0] == "good"
    expected = rungs.expected()
    assert max(expected.values()) < 0.15


def test_what_a_search_opens_with_is_kept_unless_another_is_surely_better() -> None:
    rungs = Rungs()
    rungs.record("first", 0.0, opener=True)
    for index in range(6):
        rungs.record(str(index), 0.05 * (-1) ** index)
    assert rungs.order()[0] == "first"
    for _ in range(3):
        rungs.record("0", 0.3)
    assert rungs.order()[0] == "0"


@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=4), min_size=1, max_size=20))
def test_what_is_expected_lies_between_the_screenings(scores: list[list[float]]) -> None:
    rungs = Rungs(scores={str(index): own for index, own in enumerate(scores)})
    found = rungs.expected()
    assert found.keys() == rungs.scores.keys()
    flat = [score for own in scores for score in own]
    assert all(min(flat) - 1e-9 <= one <= max(flat) + 1e-9 for one in found.values())


def test_climbing_ends() -> None:
    rungs = Rungs()
    for index in range(64):
        rungs.record(str(index), index / 100)
    steps = 0
    while found := rungs.climbing():
        for one, _ in found:
            rungs.record(one, rungs.expected()[one])
        steps += 1
        assert steps < 50
    assert max(map(len, rungs.scores.values())) <= RUNGS


# The floor.

CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 1e11},
    copy_bytes_per_s={"dram": 1e10},
    triad_bytes_per_s={"dram": 1e10},
)


def test_the_floor_counts_inputs_and_outputs() -> None:
    spec = TensorSpec(shape=(1000, 1000), dtype="float32")
    case = Case(name="timed", inputs=(spec,), scalars=(1.5,), timed=True)
    problem = Problem(name="silu", reference="made_up_references:silu", cases=(case,))
    assert floor_s(problem, CEILINGS) == pytest.approx(8e6 / 1e10)
    assert floor_s(made_up_problem(), CEILINGS) == pytest.approx(64 * 256 * 4 / 1e10)


def test_without_a_timed_case_there_is_no_floor() -> None:
    spec = TensorSpec(shape=(4,), dtype="float32")
    problem = Problem(
        name="x", reference="made_up_references:silu", cases=(Case(name="a", inputs=(spec,)),)
    )
    assert floor_s(problem, CEILINGS) is None
