"""A further look is taken at what those before leave undecided, and where it may help."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.base.errors import JudgeError
from ratchet.base.measure import Sample
from ratchet.judge.trial import decide, looks, plan
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, TWIN
from ratchet.judge.trial.decide import compare_case
from ratchet.judge.trial.looks import time_until_answered
from ratchet.judge.trial.open_problem import Record
from ratchet.judge.trial.plan import LAUNCHES
from ratchet.judge.trial.sample import CaseTiming
from ratchet.judge.verdict import CandidateFault, Decided

Asked = list[dict[str, Any]]


def timing(ratio: float, noise: float, first_launch: int, first_round: int) -> CaseTiming:
    """Three launches of four rounds, of a candidate that is `ratio` times as fast."""
    rng = np.random.default_rng([first_launch, first_round])
    means = {REFERENCE: 1e-3, TWIN: 1e-3, CANDIDATE: 1e-3 / ratio}
    samples = [
        Sample(
            arm=arm,
            launch=first_launch + launch,
            round=first_round + index,
            position=0,
            iterations=1,
            wall_time_s=mean * float(np.exp(noise * rng.normal())),
            cpu_time_s=mean,
        )
        for launch in range(3)
        for index in range(4)
        for arm, mean in means.items()
    ]
    return CaseTiming(case=0, name="timed", samples=samples, checked=3)


def rivalry() -> Any:
    def ask(**_: object) -> dict[str, float]:
        raise JudgeError("no ceilings here")

    opened = SimpleNamespace(
        ask=ask,
        clock=SimpleNamespace(reference_limit_s=9.0),
        cases=[SimpleNamespace(flops=1.0, bytes=1.0)],
    )
    return SimpleNamespace(opened=opened, record=Record())


def run(
    monkeypatch: pytest.MonkeyPatch,
    noise: float,
    *,
    ratio: float = 1.3,
    last: Decided | None = None,
) -> tuple[Any, Asked]:
    """The samples, or what was decided; and what was asked for."""
    asked: Asked = []

    def time_case(*_: object, first_launch: int, first_round: int, budget_s: float) -> CaseTiming:
        asked.append({"launch": first_launch, "round": first_round, "budget_s": budget_s})
        if first_launch > LAUNCHES and last is not None:
            raise CandidateFault(last)
        return timing(ratio, noise, first_launch, first_round)

    monkeypatch.setattr(looks, "time_case", time_case)
    try:
        return time_until_answered(0, rivalry(), no_launch, None), asked
    except CandidateFault as fault:
        return fault.decided, asked


def no_launch(index: int) -> Any:
    raise AssertionError("nothing is started here")


def test_a_clear_answer_needs_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = run(monkeypatch, noise=0.005)
    assert [(one["launch"], one["round"]) for one in asked] == [(0, 0)]
    assert len(found.samples) == 36


def test_what_is_undecided_is_looked_at_for_longer_in_new_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = run(monkeypatch, noise=0.9, ratio=2.0)
    assert [(one["launch"], one["round"]) for one in asked] == [
        (0, 0),
        (LAUNCHES, 4),
        (2 * LAUNCHES, 8),
    ]
    budgets_s = [one["budget_s"] for one in asked]
    assert budgets_s == sorted(budgets_s) and len(set(budgets_s)) == 3
    assert {sample.launch for sample in found.samples} == set(range(3 * LAUNCHES))
    assert found.checked == 9
    places = [(one.arm, one.launch, one.round) for one in found.samples]
    assert len(places) == len(set(places))


def test_no_new_launch_for_a_kernel_that_is_not_about_to_be_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, asked = run(monkeypatch, noise=0.9, ratio=1.37)
    assert [one["launch"] for one in asked] == [0, LAUNCHES]


def test_one_look_for_a_kernel_that_seems_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = run(monkeypatch, noise=0.9, ratio=0.5)
    assert [one["launch"] for one in asked] == [0]


def test_a_single_look_is_all_where_no_more_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LOOKS", 1)
    _, asked = run(monkeypatch, noise=0.9)
    assert len(asked) == 1


def test_without_time_for_the_last_look_those_before_it_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, asked = run(monkeypatch, noise=0.9, ratio=2.0, last=Decided.untimed("no room"))
    assert len(asked) == 3
    assert len(found.samples) == 72


def test_what_is_not_a_lack_of_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Decided("unmeasured", "not seen")
    assert run(monkeypatch, noise=0.9, ratio=2.0, last=last)[0].reason == "not seen"


def test_a_wrong_answer_in_the_last_look_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Decided("wrong", "right before, wrong now")
    assert run(monkeypatch, noise=0.9, ratio=2.0, last=last)[0].status == "wrong"


def test_the_looks_together_err_in_at_most_five_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as fast as the reference, simulated: how many come out as faster or slower."""
    for name in ("compare", "aa_floor"):
        monkeypatch.setattr(decide, name, partial(getattr(decide, name), resamples=200))
    false = 0
    trials = 150
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        drift = {launch: 0.02 * rng.normal() for launch in range(3 * LAUNCHES)}

        def look(first_launch: int, rounds: range, noise: Any = rng, by: Any = drift) -> CaseTiming:
            samples = [
                Sample(
                    arm=arm,
                    launch=first_launch + launch,
                    round=index,
                    position=0,
                    iterations=1,
                    wall_time_s=float(
                        np.exp(
                            0.1 * noise.normal()
                            + (by[first_launch + launch] if arm == CANDIDATE else 0.0)
                        )
                    ),
                    cpu_time_s=1.0,
                )
                for launch in range(LAUNCHES)
                for index in rounds
                for arm in (REFERENCE, TWIN, CANDIDATE)
            ]
            return CaseTiming(case=0, name="timed", samples=samples, checked=0)

        planned = (
            (0, range(4)),
            (LAUNCHES, range(4, 16)),
            (2 * LAUNCHES, range(16, 32)),
        )
        samples: list[Sample] = []
        for first_launch, rounds in planned:
            samples += look(first_launch, rounds).samples
            answer = compare_case(
                CaseTiming(case=0, name="timed", samples=samples, checked=0)
            ).answer
            if answer in ("faster", "slower"):
                false += 1
            if answer != "undecided":
                break
    assert false / trials <= 0.05
