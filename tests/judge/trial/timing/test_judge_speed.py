"""From samples to a status: only an interval above one and the floor is a proof."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.devices import ceilings
from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.probe import probe
from ratchet.base.errors import JudgeError
from ratchet.base.measure import Sample, Timing
from ratchet.judge.sandbox.isolation import arm_environment
from ratchet.judge.trial import arms, plan
from ratchet.judge.trial.arms import CANDIDATE, ONE_THREAD, REFERENCE, TWIN
from ratchet.judge.trial.decide import (
    CEILING_SLACK,
    LOOK_CONFIDENCE,
    SHORTEST_IN_PYTHON_S,
    conclude,
)
from ratchet.judge.trial.kernel_checks import answer_of_call
from ratchet.judge.trial.open_problem import CallCheck, CaseFacts, Record
from ratchet.judge.trial.sample import CaseTiming
from ratchet.judge.workers.reference import HeldProblem

FACTS = CaseFacts(name="timed", time_s=1e-3, flops=1e6, bytes=1e6)


def timing(ratio: float, *, noise: float = 0.02, seed: int = 0, time_s: float = 1e-3) -> CaseTiming:
    rng = np.random.default_rng(seed)
    arms = {REFERENCE: time_s, TWIN: time_s, CANDIDATE: time_s / ratio}
    samples = [
        Sample(
            arm=arm,
            launch=launch,
            round=index,
            position=0,
            iterations=1,
            wall_time_s=mean * float(np.exp(noise * rng.normal())),
            cpu_time_s=mean,
        )
        for launch in range(3)
        for index in range(12)
        for arm, mean in arms.items()
    ]
    return CaseTiming(case=0, name="timed", samples=samples, checked=36)


def rivalry(least_s: float | None) -> Any:
    """A trial on a machine that needs that long for a call, or whose ceilings are unknown."""

    def ask(**_: object) -> dict[str, object]:
        if least_s is None:
            raise JudgeError("no ceilings here")
        return {"least_s": least_s, "told": ""}

    clock = SimpleNamespace(reference_limit_s=1.0)
    opened = SimpleNamespace(ask=ask, clock=clock, cases=[FACTS])
    return SimpleNamespace(opened=opened, record=Record())


SLOW_ENOUGH = 2.5e-6


@pytest.mark.parametrize(
    ("ratios", "status", "words"),
    [
        ([2.0], "proven", "faster"),
        ([1.0], "correct", "speed is"),
        ([0.5], "correct", "slower"),
        ([2.0, 2.0], "proven", "faster"),
        ([3.0, 0.5], "correct", "slower"),
    ],
)
def test_the_status_follows_the_intervals_of_every_timed_case(
    ratios: list[float], status: str, words: str
) -> None:
    timings = [timing(ratio, seed=index) for index, ratio in enumerate(ratios)]
    found = conclude(timings, rivalry(SLOW_ENOUGH))
    assert found.status == status, found.reason
    assert words in found.reason
    speedup = found.speedup
    assert speedup.vs_reference is not None
    assert speedup.vs_reference.low <= speedup.vs_reference.ratio <= speedup.vs_reference.high
    assert speedup.vs_reference.confidence == LOOK_CONFIDENCE


@pytest.mark.parametrize(("gain", "status"), [(1.04, "correct"), (1.08, "proven")])
def test_a_gain_within_the_systematic_error_is_not_proven(gain: float, status: str) -> None:
    found = conclude([timing(gain, noise=0.002)], rivalry(SLOW_ENOUGH))
    assert found.status == status, found.reason
    assert found.speedup.vs_reference is not None
    assert found.speedup.vs_reference.low > 1.02


@pytest.mark.parametrize(("alone", "status"), [(0.5, "correct"), (3.0, "proven")])
def test_the_reference_is_beaten_where_it_is_faster_on_one_thread_too(
    alone: float, status: str
) -> None:
    base = timing(2.0)
    again = timing(1 / alone)
    samples = [replace(s, arm=ONE_THREAD) for s in again.samples if s.arm == CANDIDATE]
    both = replace(base, samples=base.samples + samples)
    found = conclude([both], rivalry(SLOW_ENOUGH))
    assert found.status == status, found.reason


@pytest.mark.parametrize("ratio", [1.0, 2.4])
def test_noise_is_no_answer_and_is_named(ratio: float) -> None:
    found = conclude([timing(ratio, noise=1.6)], rivalry(SLOW_ENOUGH))
    assert found.status == "correct"
    assert "undecided" in found.reason and "equivalent" not in found.reason
    assert "the machine was too noisy (" in found.reason and "A/A" in found.reason
    assert found.reason.endswith(": judge again")
    assert found.not_timed.startswith("the machine was too noisy")


@pytest.mark.parametrize(("ratio", "word"), [(0.5, "slower"), (2.0, "faster")])
def test_what_is_known_is_not_noise(ratio: float, word: str) -> None:
    found = conclude([timing(ratio, noise=0.005)], rivalry(SLOW_ENOUGH))
    assert word in found.reason and not found.not_timed


def test_an_undecided_answer_names_the_start_that_it_rests_on() -> None:
    base = timing(2.0, noise=0.002)
    again = timing(1.2, noise=0.5)
    alone = [replace(s, arm=ONE_THREAD) for s in again.samples if s.arm == REFERENCE]
    slow = [replace(s, wall_time_s=s.wall_time_s / 1.9) for s in alone]
    found = conclude([replace(base, samples=base.samples + slow)], rivalry(SLOW_ENOUGH))
    assert "undecided" in found.reason
    assert "beside the reference on one thread it is" in found.reason


def test_noise_is_named_once_where_one_thread_was_timed_too() -> None:
    """One interval is that of the answer, so no second one stands beside it."""
    base, again = timing(1.2, noise=0.5, seed=1), timing(1.0, noise=1.6, seed=51, time_s=6e-4)
    alone = [replace(s, arm=ONE_THREAD) for s in again.samples if s.arm == REFERENCE]
    found = conclude([replace(base, samples=base.samples + alone)], rivalry(SLOW_ENOUGH))
    assert found.reason.count("the machine was too noisy") == 1, found.reason


def test_of_several_cases_the_noisy_one_is_named() -> None:
    quiet = replace(timing(2.0, noise=0.002), name="quiet")
    noisy = replace(timing(1.5, noise=1.5, seed=3), name="noisy")
    found = conclude([quiet, noisy], rivalry(SLOW_ENOUGH))
    assert "; on noisy the machine was too noisy" in found.reason, found.reason
    assert found.not_timed


def test_a_gain_within_the_judges_own_error_says_so_and_is_an_answer() -> None:
    found = conclude([timing(1.04, noise=0.002)], rivalry(SLOW_ENOUGH))
    assert "undecided" in found.reason and "the judge's own error" in found.reason
    assert not found.not_timed


SHORT_S, LONG_S = 0.5 * SHORTEST_IN_PYTHON_S, 2 * SHORTEST_IN_PYTHON_S


@pytest.mark.parametrize(
    ("times_s", "by_dispatch", "status"),
    [
        ([SHORT_S], True, "correct"),
        ([SHORT_S], False, "proven"),
        ([LONG_S], True, "proven"),
        ([LONG_S, SHORT_S], True, "correct"),
    ],
)
def test_a_gain_on_short_calls_in_python_may_be_one_of_dispatch(
    times_s: list[float], by_dispatch: bool, status: str
) -> None:
    timings = [timing(2.0, seed=seed, time_s=time_s) for seed, time_s in enumerate(times_s)]
    problem = rivalry(SLOW_ENOUGH)
    found = conclude(timings, problem, by_dispatch=by_dispatch)
    assert found.status == status, found.reason
    speedup = found.speedup
    assert speedup.vs_reference is not None
    long_enough = [one.passed for one in problem.record.evidence if one.check == "long enough"]
    if status == "correct":
        assert "larger case" in found.reason and long_enough == [False]
        assert speedup.vs_reference.high <= 1
        assert speedup.vs_reference.confidence == LOOK_CONFIDENCE
    else:
        assert not long_enough
        assert speedup.vs_reference.low > 1


def test_how_short_a_call_is_tells_the_reference_that_must_be_beaten() -> None:
    """On one thread it takes 150 us, with all of them 300 us: that is too short."""
    base = timing(3.0, time_s=3e-4)
    alone = timing(2.0, time_s=3e-4)
    samples = [replace(s, arm=ONE_THREAD) for s in alone.samples if s.arm == CANDIDATE]
    both = replace(base, samples=base.samples + samples)
    found = conclude([both], rivalry(SLOW_ENOUGH), by_dispatch=True)
    assert found.status == "correct", found.reason
    assert "a call of the reference on timed takes 1" in found.reason


def test_what_is_slower_and_short_is_slower() -> None:
    found = conclude([timing(0.5, time_s=SHORT_S)], rivalry(SLOW_ENOUGH), by_dispatch=True)
    assert "slower" in found.reason


def test_a_kernel_whose_work_was_not_seen_is_right_and_not_proven() -> None:
    unseen = replace(timing(2.0), unseen="it runs too shortly")
    found = conclude([unseen], rivalry(SLOW_ENOUGH))
    assert found.status == "correct" and "it runs too shortly" in found.reason
    ratio = found.speedup.vs_reference
    assert ratio is not None and ratio.high == 1.0


def test_a_time_that_cannot_be_is_unmeasured_and_no_win() -> None:
    problem = rivalry(1e-4)
    found = conclude([timing(50.0)], problem)
    assert found.status == "unmeasured"
    assert "cannot reach" in found.reason
    assert found.speedup.vs_reference is None
    assert problem.record.evidence[-1].passed is False


def test_a_floor_that_the_reference_is_under_is_none() -> None:
    problem = rivalry(1e-2)
    found = conclude([timing(50.0)], problem)
    assert found.status == "proven"
    assert problem.record.evidence[-1].passed is None
    assert "no bound here" in problem.record.evidence[-1].detail


@pytest.mark.parametrize(("ratio", "status"), [(2.0, "unmeasured"), (0.5, "correct")])
def test_without_ceilings_nothing_is_won(ratio: float, status: str) -> None:
    problem = rivalry(None)
    found = conclude([timing(ratio)], problem)
    assert found.status == status
    assert problem.record.evidence[-1].passed is None
    assert "not checked" in problem.record.evidence[-1].detail


def test_a_problem_without_a_timed_case_is_never_proven() -> None:
    assert conclude([], rivalry(None)).status == "correct"


def ceilings_of(bytes_per_s: float, busy: float) -> Ceilings:
    return Ceilings(
        device=probe("cpu").fingerprint,
        gemm_flops_per_s={"fp32": 1e11},
        copy_bytes_per_s={"dram": bytes_per_s},
        triad_bytes_per_s={"dram": bytes_per_s},
        busy=busy,
    )


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    ("truth", "status", "told"),
    [(1e10, "proven", "measured anew"), (1e8, "unmeasured", "other work took 70%")],
)
def test_ceilings_from_a_busy_hour_are_measured_anew_before_a_time_is_impossible(
    truth: float,
    status: str,
    told: str,
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel moves 1e6 bytes in 50 us; the file says 2.5 ms at least."""
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path))
    monkeypatch.setattr(ceilings, "_measured", lambda _: ceilings_of(1e8, 0.7))
    for _ in range(times):
        ceilings.measure(probe("cpu"), again="now")
    quiet = ceilings_of(truth, 0.0 if status == "proven" else 0.7)
    monkeypatch.setattr(ceilings, "_measured", lambda _: quiet)
    problem = rivalry(None)
    worker = SimpleNamespace(_device=SimpleNamespace(memory=SimpleNamespace(device="cpu")))
    problem.opened.ask = lambda **message: HeldProblem._ceilings(worker, message)[0]  # type: ignore[arg-type]
    found = conclude([timing(200.0, time_s=1e-2)], problem)
    assert found.status == status, found.reason
    assert told in problem.record.evidence[-1].detail


def test_a_reference_under_its_floor_refutes_the_ceilings_too() -> None:
    """The slowest arm is the kernel's; the worker is told the fastest time of all."""
    problem, asked = rivalry(1e-2), []
    ask = problem.opened.ask
    problem.opened.ask = lambda **message: asked.append(message) or ask()
    assert conclude([timing(0.5)], problem).status == "correct"
    (message,) = asked
    assert message["seconds"] == pytest.approx(1e-3, rel=0.05)
    assert message["slack"] == CEILING_SLACK
    assert problem.record.evidence[-1].passed is None


@given(st.floats(1e-7, 10.0), st.floats(1.0, 1e10))
def test_a_batch_holds_at_least_one_call_and_no_more_memory_than_allowed(
    time_s: float, size_bytes: float
) -> None:
    calls = plan.calls_per_batch(time_s, size_bytes)
    assert 1 <= calls <= plan.MAX_CALLS
    assert calls == 1 or calls * size_bytes <= plan.MAX_BATCH_BYTES


@given(st.floats(1e-5, 1e3))
def test_rounds_are_even_and_bounded(round_s: float) -> None:
    rounds = plan.round_count(round_s, plan.BUDGET_S)
    assert rounds % 2 == 0
    assert plan.MIN_ROUNDS <= rounds <= plan.MAX_ROUNDS


@pytest.mark.parametrize(
    ("code", "check", "answer"),
    [
        (0, CallCheck(passed=True, written=True, changed_input=None, detail=""), True),
        (0, CallCheck(passed=False, written=True, changed_input=None, detail=""), False),
        (0, CallCheck(passed=True, written=True, changed_input=0, detail=""), False),
        (1, CallCheck(passed=False, written=False, changed_input=None, detail=""), None),
        (1, CallCheck(passed=True, written=True, changed_input=None, detail=""), False),
        (-1, CallCheck(passed=True, written=True, changed_input=None, detail=""), False),
    ],
)
def test_a_call_is_right_only_when_code_and_memory_agree(
    code: int, check: CallCheck, answer: bool | None
) -> None:
    assert answer_of_call(code, check).passed is answer


FAULTS = """
import resource, sys, torch
x = torch.rand(12 << 20)
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    y = torch.relu(x)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


def test_a_large_result_lies_on_pages_that_the_process_has_after_a_few_calls() -> None:
    environment = {**os.environ, **arm_environment(1)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    faults = [int(word) for word in done.stdout.split()]
    assert faults[0] > 1000, "48 MB are more than a thousand pages"
    assert max(faults[arms.WARM_CALLS :]) < 100


@pytest.mark.parametrize(("calls", "batches"), [(1, 3), (2, 2), (64, 1)])
def test_a_launch_is_warmed_by_a_few_calls(calls: int, batches: int) -> None:
    arm = CountingArm()
    assert arms.warm(arm, calls) >= 0
    assert arm.ran == [calls] * batches


class CountingArm:
    """An arm that keeps how many iterations it was asked for."""

    name = "counting"

    def __init__(self) -> None:
        self.ran: list[int] = []

    def run(self, iterations: int) -> Timing:
        """Nothing but the count."""
        self.ran.append(iterations)
        return Timing(wall_time_s=1.0, cpu_time_s=1.0)


@pytest.mark.parametrize(
    ("gain", "waited", "status"),
    [(1.2, 0.0, "proven"), (1.2, 0.4, "correct"), (1.4, 0.4, "proven"), (0.5, 0.4, "correct")],
)
def test_a_gain_that_a_busy_machine_may_give_is_not_proven(
    gain: float, waited: float, status: str
) -> None:
    found = conclude([replace(timing(gain, noise=0.002), waited=waited)], rivalry(SLOW_ENOUGH))
    assert found.status == status, found.reason
    if gain == 1.2 and waited:
        assert "the reference waited for cores 40% of its time, and up to 1.25x" in found.reason
        assert found.reason.endswith(": judge again") and found.not_timed
    if gain < 1:
        assert "slower" in found.reason and not found.not_timed
