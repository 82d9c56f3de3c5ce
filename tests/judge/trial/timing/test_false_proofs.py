"""How often the judge proves the reference faster than itself, on machines whose starts differ.

No clock: the times are a simulated machine's, each arm's start has its own luck, and the looks,
the interval and the floor are the judge's own.
"""

from __future__ import annotations

import functools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated_machine import Machine, simulate, to_samples

from ratchet.base.errors import JudgeError
from ratchet.judge.trial import decide, looks, plan
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, TWIN
from ratchet.judge.trial.looks import time_until_answered
from ratchet.judge.trial.open_problem import Record
from ratchet.judge.trial.sample import CaseTiming

ARMS = REFERENCE, TWIN, CANDIDATE
ROUNDS = {
    plan.SHORT_BUDGET_S: 4,
    plan.BUDGET_S: 8,
    plan.LONG_BUDGET_S: 16,
}
"""Of each launch of a look, where a round takes 10 ms."""
RESAMPLES = 100


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compare", "aa_floor"):
        monkeypatch.setattr(
            decide, name, functools.partial(getattr(decide, name), resamples=RESAMPLES)
        )


def answers(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, *, trials: int, ratio: float = 1.0
) -> Counter[str]:
    rng = np.random.default_rng(11)

    def time_case(*_: Any, first_launch: int, first_round: int, budget_s: float) -> CaseTiming:
        times_s = simulate(
            rng,
            machine,
            experiments=1,
            launches=plan.LAUNCHES,
            rounds=ROUNDS[budget_s],
            speedups=(1.0, 1.0, ratio),
        )[0]
        samples = to_samples(times_s, ARMS, first_launch=first_launch, first_round=first_round)
        return CaseTiming(case=0, name="timed", samples=samples, checked=1)

    monkeypatch.setattr(looks, "time_case", time_case)
    return Counter(
        decide.compare_case(time_until_answered(0, rivalry(), no_launch, None)).answer
        for _ in range(trials)
    )


def rivalry() -> Any:
    def ask(**_: object) -> None:
        raise JudgeError("no ceilings here")

    opened = SimpleNamespace(
        ask=ask,
        clock=SimpleNamespace(left_s=9.0, reference_limit_s=9.0),
        cases=[SimpleNamespace(flops=1.0, bytes=1.0)],
    )
    return SimpleNamespace(opened=opened, record=Record())


def no_launch(index: int) -> Any:
    raise AssertionError("nothing is started here")


@pytest.mark.parametrize(
    ("launch_effect", "noise", "trials"),
    [
        (0.2, 0.05, 500),
        pytest.param(0.2, 0.02, 1000, marks=pytest.mark.slow),
        pytest.param(0.05, 0.2, 1000, marks=pytest.mark.slow),
    ],
)
def test_the_reference_is_no_faster_than_itself(
    launch_effect: float, noise: float, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(launch=launch_effect, noise=noise)
    found = answers(monkeypatch, machine, trials=trials)
    assert found["faster"] <= trials / 500, found
    assert found["slower"] <= trials / 100, found


def test_a_gain_of_a_fifth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(launch=0.02, noise=0.05)
    found = answers(monkeypatch, machine, trials=20, ratio=1.2)
    assert found["faster"] >= 18, found
