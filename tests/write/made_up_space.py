"""A schedule space whose times are known, and a court that simulates a noisy machine."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated_machine import Machine, simulate, to_samples

from ratchet.base.errors import JudgeError
from ratchet.base.measure import Ratio
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.judge.trial import decide, looks, plan
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, TWIN
from ratchet.judge.trial.looks import time_until_answered
from ratchet.judge.trial.open_problem import Record
from ratchet.judge.trial.sample import CaseTiming
from ratchet.judge.verdict import Screening, Speedups, TimedSample, Verdict
from ratchet.write.author import Answer, Progress, Proposal, Schedule
from ratchet.write.search import new_draws

CHOICES = {
    "tile": ("8", "16", "32", "64", "128", "256"),
    "unroll": ("1", "2", "4", "8"),
    "vector": ("4", "8", "16"),
    "axis": ("0", "1", "2"),
    "online": ("no", "yes"),
    "store": ("plain", "streaming"),
    "prefetch": ("0", "1", "2", "4"),
}
ARMS = REFERENCE, TWIN, CANDIDATE
ROUNDS = {
    plan.SHORT_BUDGET_S: 4,
    plan.BUDGET_S: 8,
    plan.LONG_BUDGET_S: 16,
}


def screened(proposal: Proposal, ratio: float, **others: Any) -> Answer:
    """Return a proposal that was screened as right."""
    hash_ = proposal.kernel.hash
    said = Screening(kernel_hash=hash_, status="screened", ratio=ratio, **others)
    return Answer.by_screening(proposal, said)


def made_up_problem(name: str = "made_up", size: int = 256) -> Problem:
    """A problem that is never run."""
    spec = TensorSpec(shape=(64, size), dtype="float32")
    case = Case(name="timed", inputs=(spec,), timed=True)
    return Problem(name=name, reference="nowhere:reference", cases=(case,), text="# none")


class MadeUpSpace:
    """Choices whose effects on the time are known; some hang together."""

    def __init__(self, size: int = 256, *, same: bool = False) -> None:
        self.size = size
        self.same = same
        """All schedules give kernels of one speed."""

    def first(self) -> list[Schedule]:
        middle = {name: values[len(values) // 2] for name, values in CHOICES.items()}
        return [tuple(sorted(middle.items()))]

    def draw(self, source: random.Random) -> Schedule:
        return tuple(sorted((name, source.choice(values)) for name, values in CHOICES.items()))

    def change(self, schedule: Schedule, source: random.Random) -> Schedule:
        given = dict(schedule)
        name = source.choice(sorted(CHOICES))
        given[name] = source.choice([one for one in CHOICES[name] if one != given[name]])
        return tuple(sorted(given.items()))

    def features(self, schedule: Schedule) -> tuple[float, ...]:
        given = dict(schedule)
        places = tuple(float(CHOICES[name].index(given[name])) for name in sorted(CHOICES))
        return (math.log(self.size), *places)

    def kernel(self, schedule: Schedule) -> Kernel:
        words = ", ".join(f"{name}={value}" for name, value in schedule)
        return Kernel(
            name="made up",
            language="cpp",
            source=f"// {words}\n",
            entry="made_up",
            schedule=schedule,
        )

    def log_ratio(self, schedule: Schedule) -> float:
        """Logarithm of the speed-up of a schedule's kernel."""
        if self.same:
            return 0.0
        given = {name: CHOICES[name].index(value) for name, value in schedule}
        best_tile = 2 if self.size < 1000 else 4
        found = -0.12 * abs(given["tile"] - best_tile) - 0.08 * abs(given["unroll"] - 2)
        found += 0.1 * given["vector"] if given["tile"] >= 2 else -0.1 * given["vector"]
        found += 0.15 if given["online"] == given["store"] else 0.0
        found += 0.05 * (given["axis"] == 1) - 0.03 * given["prefetch"]
        return found

    def best(self) -> float:
        """The highest logarithm of any schedule."""
        pairs = [[(name, one) for one in values] for name, values in CHOICES.items()]
        every = itertools.product(*pairs)
        return max(self.log_ratio(one) for one in every)


class RandomSearch:
    """Proposes schedules drawn at random: the baseline of a search."""

    name = "search"

    def __init__(self, space: MadeUpSpace, *, seed: int = 0) -> None:
        self._space, self._source = space, random.Random(seed)
        self._seen: set[Schedule] = set()

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        drawn = itertools.islice(new_draws(self._space, self._seen, self._source), count)
        return [
            Proposal(
                kernel=self._space.kernel(one),
                author=self.name,
                schedule=one,
                features=tuple(self._space.features(one)),
            )
            for one in drawn
        ]


class MadeUpCourt:
    """Answers with the true speed of a kernel's schedule under a simulated machine's noise.

    The looks, the interval, the floor and the level of a verdict are the judge's own.
    """

    fleet = SimpleNamespace(width=1)

    def __init__(
        self,
        space: MadeUpSpace,
        monkeypatch: pytest.MonkeyPatch,
        *,
        seed: int,
        machine: Machine | None = None,
        wrong: frozenset[str] = frozenset(),
    ) -> None:
        self.space = space
        self.machine = machine or Machine(launch=0.02, noise=0.05)
        self.rng = np.random.default_rng(seed)
        self.wrong = wrong
        """Hashes that a verdict finds wrong, and a screening does not."""
        self.levels: list[int] = []
        self.screened: list[str] = []
        self._patch = monkeypatch
        for name in ("compare", "aa_floor"):
            given = getattr(decide, name)
            if not isinstance(given, functools.partial):
                monkeypatch.setattr(decide, name, functools.partial(given, resamples=100))

    def screen(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms, *, best: Kernel | None
    ) -> list[Screening]:
        self.screened += [one.hash for one in kernels]
        times_s = simulate(self.rng, self.machine, experiments=len(kernels), launches=1, rounds=10)
        noise = np.median(np.log(times_s[:, 0, 0] / times_s[:, 1, 0]), axis=-1)
        found = []
        for kernel, luck in zip(kernels, noise, strict=True):
            ratio = math.exp(self.space.log_ratio(kernel.schedule) + float(luck))
            found.append(
                Screening(
                    kernel_hash=kernel.hash,
                    status="screened",
                    reason="about right",
                    ratio=ratio,
                    low=ratio / 1.1,
                    high=ratio * 1.1,
                    time_s=1e-3 * self.space.size / 256 / ratio,
                )
            )
        return found

    def judge_all(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms, *, fresh: bool = False
    ) -> Iterator[JudgedKernel]:
        for kernel in kernels:
            yield self._verdict(kernel, problem, terms)

    def _verdict(self, kernel: Kernel, problem: Problem, terms: Terms) -> JudgedKernel:
        self.levels.append(terms.among)
        if kernel.hash in self.wrong:
            return self._judged(kernel, problem, "wrong", None, [])
        ratio = math.exp(self.space.log_ratio(kernel.schedule))

        def time_case(*_: Any, first_launch: int, first_round: int, budget_s: float) -> CaseTiming:
            times_s = simulate(
                self.rng,
                self.machine,
                experiments=1,
                launches=plan.LAUNCHES,
                rounds=ROUNDS[budget_s],
                speedups=(1.0, 1.0, ratio),
            )[0]
            samples = to_samples(times_s, ARMS, first_launch=first_launch, first_round=first_round)
            return CaseTiming(case=0, name="timed", samples=samples, checked=1, among=terms.among)

        self._patch.setattr(looks, "time_case", time_case)
        timing = time_until_answered(0, _rivalry(), _no_launch, None)
        found = decide.compare_case(timing)
        status = "proven" if found.answer == "faster" else "correct"
        shown = Ratio(
            ratio=found.ratio, low=found.low, high=found.high, confidence=found.confidence
        )
        return self._judged(kernel, problem, status, shown, timing.as_json()[:4])

    def _judged(
        self,
        kernel: Kernel,
        problem: Problem,
        status: Any,
        ratio: Ratio | None,
        samples: list[TimedSample],
    ) -> JudgedKernel:
        verdict = Verdict(
            status=status,
            reason="simulated",
            speedup=Speedups(vs_reference=ratio),
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
            samples=samples,
        )
        return JudgedKernel(
            verdict=verdict,
            kernel=kernel,
            problem=problem,
            judged_at="2026-11-23T00:00:00+00:00",
            recalled=False,
        )


def _rivalry() -> Any:
    def ask(**_: object) -> None:
        raise JudgeError("no ceilings here")

    opened = SimpleNamespace(
        ask=ask,
        clock=SimpleNamespace(left_s=9.0, reference_limit_s=9.0),
        cases=[SimpleNamespace(flops=1.0, bytes=1.0)],
    )
    return SimpleNamespace(opened=opened, record=Record())


def _no_launch(index: int) -> Any:
    raise AssertionError("nothing is started here")
