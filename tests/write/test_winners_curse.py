"""A search among kernels of one speed proves none of them faster, however many it screens."""

from __future__ import annotations

import pytest
from made_up_space import MadeUpCourt, MadeUpSpace, RandomSearch, made_up_problem
from simulated_machine import Machine

from ratchet.write.problem_run import ProblemRun
from ratchet.write.search import SearchAuthor
from ratchet.write.writing_result import WritingRequest

SEARCHES, CANDIDATES = 200, 100


def run_search(
    space: MadeUpSpace,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int,
    candidates: int = CANDIDATES,
    author: type[SearchAuthor] | type[RandomSearch] = SearchAuthor,
    budget_s: float = 60.0,
    machine: Machine | None = None,
) -> tuple[ProblemRun, MadeUpCourt]:
    court = MadeUpCourt(space, monkeypatch, seed=seed, machine=machine)
    run = ProblemRun(
        problem=made_up_problem(size=space.size),
        request=WritingRequest(budget_s=budget_s, candidates=candidates, seed=seed),
        authors=[author(space, seed=seed)],
        court=court,
        keep=lambda answer: None,
        listen=lambda event: None,
        clock=lambda: 0.0,
    )
    run.search()
    run.confirm()
    return run, court


@pytest.mark.parametrize(("again_s", "stopped"), [(1e-9, "candidates"), (None, "floor")])
def test_a_kernel_under_its_floor_has_the_floor_measured_anew(
    again_s: float | None, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, asked = MadeUpSpace(), []
    run = ProblemRun(
        problem=made_up_problem(size=space.size),
        request=WritingRequest(budget_s=60.0, candidates=CANDIDATES, seed=0),
        authors=[SearchAuthor(space, seed=0)],
        court=MadeUpCourt(space, monkeypatch, seed=0),
        keep=lambda answer: None,
        listen=lambda event: None,
        clock=lambda: 0.0,
        floor_s=1e3,
        floor_below=lambda time_s: asked.append(time_s) or again_s,
    )
    run.search()
    assert run.stopped == stopped
    assert len(asked) == 1 and asked[0] < 1e3


def statuses(run: ProblemRun) -> list[str]:
    return [one.verdict.status for one in run.verdicts]


@pytest.mark.parametrize(
    "budget_s", [60.0, pytest.param(1200.0, marks=[pytest.mark.thorough, pytest.mark.slow])]
)
def test_two_hundred_searches_among_equal_kernels_prove_none(
    budget_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = MadeUpSpace(same=True)
    proven, lucky = 0, 0
    for seed in range(SEARCHES):
        run, _ = run_search(space, monkeypatch, seed=seed, author=RandomSearch, budget_s=budget_s)
        assert run.screened == CANDIDATES
        proven += "proven" in statuses(run)
        best = run.progress.best
        assert best is not None and best.ratio is not None
        lucky += best.ratio > 1.03
    assert proven == 0
    # The best of a hundred estimates nearly always looks faster: this is what is guarded against.
    assert lucky > 0.9 * SEARCHES


def test_a_screened_ratio_is_never_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict on the chosen kernel lies around the truth; the estimate that chose it above."""
    space = MadeUpSpace(same=True)
    excess, confirmed = [], []
    for seed in range(24):
        run, _ = run_search(space, monkeypatch, seed=seed, author=RandomSearch)
        judged = run.progress.answers[-1]
        assert judged.stage == "judged" and judged.ratio is not None
        chosen = judged.kernel_hash
        first = next(one for one in run.progress.answers if one.kernel_hash == chosen)
        assert first.ratio is not None
        excess.append(first.ratio)
        confirmed.append(judged.ratio)
    assert sum(excess) / len(excess) > 1.02
    assert abs(sum(confirmed) / len(confirmed) - 1) < 0.015


def test_a_faster_kernel_is_found_and_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(10):
        run, _ = run_search(MadeUpSpace(), monkeypatch, seed=seed, candidates=60)
        found += "proven" in statuses(run)
    assert found >= 9


def test_the_level_pays_for_every_planned_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    space = MadeUpSpace(same=True)
    for budget_s, planned in ((60.0, 1), (600.0, 2), (3600.0, 3)):
        run, court = run_search(space, monkeypatch, seed=1, candidates=20, budget_s=budget_s)
        assert court.levels == [planned] * planned
        confidence = run.verdicts[0].verdict.speedup.vs_reference.confidence
        assert confidence == pytest.approx(1 - 0.05 / 3 / planned)


def test_a_kernel_that_turns_out_wrong_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    space = MadeUpSpace()
    court = MadeUpCourt(space, monkeypatch, seed=3)
    run = ProblemRun(
        problem=made_up_problem(),
        request=WritingRequest(budget_s=60.0, candidates=40),
        authors=[SearchAuthor(space, seed=3)],
        court=court,
        keep=lambda answer: None,
        listen=lambda event: None,
        clock=lambda: 0.0,
    )
    run.search()
    court.wrong = frozenset(run._order()[:2])
    run.confirm()
    assert statuses(run) == ["wrong", "wrong", "proven"]


def test_no_kernel_is_screened_twice_but_to_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    _, court = run_search(MadeUpSpace(), monkeypatch, seed=5, candidates=64)
    times = sorted((court.screened.count(one) for one in set(court.screened)), reverse=True)
    assert len(times) == 64
    assert times[0] >= 3
    assert sum(one > 1 for one in times) <= 24
