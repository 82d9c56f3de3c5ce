"""Compare two sides: launches of paired rounds, and an answer at each planned look.

The plan depends on the clock alone, never on which arm was faster. So it may be made after the
first launch has started, and its looks are still fixed in advance.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ratchet.base import Json, drawn_by
from ratchet.base.measure import Arm, Sample
from ratchet.base.measure.metrics import Metric, MetricAnswer, Readings, decide_all, exit_code
from ratchet.base.measure.rounds import (
    FEWEST_ROUNDS,
    OpenLaunch,
    run_launches,
    run_rounds,
    until_settled,
)
from ratchet.base.serialise import document_of

FALSE_RATE = 0.01
"""Chance that a comparison of two equal arms answers `faster` or `slower`, over all looks."""
LOOKS = 3
MOST_LAUNCHES, LEAST_LAUNCHES = 32, 3
MOST_ROUNDS, LEAST_ROUNDS = 40, 6
LAUNCHES = {MOST_LAUNCHES: 20, 24: 20, 16: LEAST_ROUNDS, 12: LEAST_ROUNDS, 8: LEAST_ROUNDS}
LAUNCHES |= {6: LEAST_ROUNDS, 4: LEAST_ROUNDS, LEAST_LAUNCHES: LEAST_ROUNDS}
"""Numbers of launches, and the rounds that each of them must have. Launches differ more than rounds
do, but beyond 16 of them, starting them takes more than it tells unless they are long."""
FEWEST_PAIRS = 6
TARGET_BATCH_S = 0.02
"""A sample runs at least this long, so that the clock and the channel cost little of it."""
MOST_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class PairPlan:
    """Launches, rounds in each, and the numbers of launches after which an answer may be given."""

    launches: int
    rounds: int
    looks: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return self.launches * self.rounds


def make_plan(left_s: float, *, setup_s: float, round_s: float) -> PairPlan | None:
    """Plan as many launches as fit in `left_s`; None if not even six pairs fit.

    `setup_s` is what a launch costs before its first round, `round_s` one round of all arms.
    """
    smallest = (LEAST_LAUNCHES, FEWEST_PAIRS / LEAST_LAUNCHES)
    for launches, least in (*LAUNCHES.items(), smallest):
        rounds = even_rounds(left_s / launches - setup_s, round_s, most=MOST_ROUNDS)
        if rounds >= least:
            shares = (math.ceil(launches / 4), math.ceil(launches / 2), launches)
            looks = sorted({max(look, LEAST_LAUNCHES) for look in shares})
            return PairPlan(launches=launches, rounds=rounds, looks=tuple(looks))
    return None


def confidence_of(false_rate: float, *, looks: int = 1, among: int = 1) -> float:
    """Return the confidence of each of several intervals that together err at a rate, at most.

    The rate is spent evenly on the looks, and on the answers of each look (`among`). The bound is
    Bonferroni's: it holds however they depend on each other (Jennison and Turnbull, "Group
    Sequential Methods", 2000, chapter 1).
    """
    return 1 - false_rate / looks / max(1, among)


def look_confidence(metrics: int) -> float:
    """Return the confidence of each interval, given the number of metrics that decide."""
    return confidence_of(FALSE_RATE, looks=LOOKS, among=metrics)


def even_rounds(seconds: float, round_s: float, *, most: int, fewest: int = 0) -> int:
    """Return how many rounds fit, an even number so that orders balance."""
    fitting = int(seconds / max(round_s, 1e-9))
    return max(fewest, min(most, fitting)) // 2 * 2


def batch_iterations(step_s: float) -> int:
    """Return the number of iterations of one sample."""
    return max(1, min(MOST_ITERATIONS, math.ceil(TARGET_BATCH_S / max(step_s, 1e-9))))


DEFAULT_BUDGET_S = 300.0
PILOT_ROUNDS = 2  # Rounds that tell how long one takes; they do not count
AFTERWARDS = 1.05  # Suggested time over the estimate


class Contest(Protocol):
    """Two sides: opens their arms for each launch, and reads what the arms measured."""

    @property
    def titles(self) -> tuple[str, str]: ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def open(self, launch: int, limit_s: float) -> AbstractContextManager[Sequence[Arm]]:
        """Start the arms a, b and twin, and warm them."""
        ...

    def first_round_s(self) -> float | None:
        """Return a round's time, known from opening alone; None if rounds must tell."""
        ...

    def iterations(self) -> Mapping[str, int]:
        """Return each arm's iterations in a sample."""
        ...

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        """Add one round's values."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareSettings:
    """Limits: how long to measure, and how much slower the new side may be."""

    budget_s: float = DEFAULT_BUDGET_S
    allowed: float = 0.0  # Regression budget: 0.02 is 2 %
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOutcome:
    """The result of a comparison; times in seconds."""

    titles: tuple[str, str]  # Baseline and new
    answers: tuple[MetricAnswer, ...]  # Empty if the time did not suffice for two pairs
    exit_code: int
    allowed: float
    plan: PairPlan | None
    looks_taken: int
    spent_s: float
    budget_s: float
    needed_s: float | None  # A budget that would decide an undecided answer, about
    launches: int
    samples: tuple[Sample, ...]
    readings: Readings
    warnings: tuple[str, ...] = ()
    turn: str = ""  # Identity in the ledger
    details: dict[str, Json] = field(default_factory=dict)
    """Additions to the answer: instruction counts, the traces' difference, revisions."""

    _repr_html_ = drawn_by("ratchet.guard.compare:comparison_report")

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.turn,
            "baseline": self.titles[0],
            "new": self.titles[1],
            "answer": self.answers[0].answer if self.answers else "undecided",
            "exit_code": self.exit_code,
            "allowed": self.allowed,
            "metrics": document_of(self.answers),
            "launches": self.launches,
            "looks_taken": self.looks_taken,
            "spent_s": self.spent_s,
            "budget_s": self.budget_s,
            "needed_s": self.needed_s,
            "warnings": list(self.warnings),
            **self.details,
        }


OnProgress = Callable[[str], None]
OnSamples = Callable[[Sequence[Sample]], None]


class _Comparison:
    def __init__(
        self, contest: Contest, settings: CompareSettings, on: OnProgress, keep: OnSamples
    ) -> None:
        self.contest, self.settings, self.on, self.keep = contest, settings, on, keep
        self.rng = np.random.default_rng(settings.seed)
        self.began_s = time.monotonic()
        self.readings, self.samples = Readings(), list[Sample]()
        self.plan: PairPlan | None = None
        self.round_s = self.setup_s = 0.0
        self.launches = self.looks = self.looked_after = 0
        self.answers: list[MetricAnswer] = []

    @property
    def left_s(self) -> float:
        return self.settings.budget_s - (time.monotonic() - self.began_s)

    def run(self) -> CompareOutcome:
        until_settled(self._take, self._is_over)
        if self.launches > self.looked_after and not self._settled():
            self._look()  # the clock ended it, whatever the samples said
        return self._outcome()

    def _take(self, looks: int) -> bool:
        """Run the launches of the next look; return False if the clock ends it before."""

        def more(launch: int) -> bool:
            if launch == 0:
                return True
            if self.plan is None or launch == self.plan.looks[looks]:
                return False
            return self.left_s >= self.setup_s + FEWEST_ROUNDS * self.round_s

        run_launches(
            self._open,
            more=more,
            rng=self.rng,
            first=self.launches,
            enough=lambda: self.left_s < 0,
        )
        if self.plan is None or self.launches < self.plan.looks[looks]:
            return False
        self._look()
        return True

    def _is_over(self, looks: int) -> bool:
        """Return True after the last look, or if no more pairs are needed."""
        return self._settled() or (self.plan is not None and looks == len(self.plan.looks))

    @contextlib.contextmanager
    def _open(self, launch: int) -> Iterator[OpenLaunch]:
        began_s, before = time.monotonic(), len(self.samples)
        self.on(f"launch {launch + 1}: starting")
        try:
            with self.contest.open(launch, self.left_s) as arms:
                if launch == 0:
                    self.setup_s = time.monotonic() - began_s
                    self._make_plan(arms)
                yield OpenLaunch(
                    arms=arms,
                    rounds=self.plan.rounds if self.plan is not None else 0,
                    iterations=self.contest.iterations(),
                    on_round=self._keep,
                )
        finally:  # also if the command fails, or the user interrupts it
            self.keep(self.samples[before:])
        if self.plan is not None:
            self.contest.read(self.readings, ())
            self.launches += 1

    def _make_plan(self, arms: Sequence[Arm]) -> None:
        first_s = self.contest.first_round_s()
        if first_s is not None:
            self.setup_s, self.round_s = 0.0, first_s
        else:
            began_s = time.monotonic()
            iterations = self.contest.iterations()
            run_rounds(arms, rounds=PILOT_ROUNDS, launch=0, rng=self.rng, iterations=iterations)
            self.round_s = (time.monotonic() - began_s) / PILOT_ROUNDS
        left_s = self.left_s + self.setup_s  # the first launch has been set up
        self.plan = make_plan(left_s, setup_s=self.setup_s, round_s=self.round_s)

    def _keep(self, index: int, samples: Sequence[Sample]) -> None:
        assert self.plan is not None
        self.samples += samples
        self.contest.read(self.readings, samples)
        done = self.launches * self.plan.rounds + index + 1
        self.on(f"pair {done} of at most {self.plan.pairs}")

    def _look(self) -> None:
        self.looks, self.looked_after = self.looks + 1, self.launches
        metrics = self.contest.metrics
        confidence = look_confidence(sum(one.decides for one in metrics))
        allowed = self.settings.allowed
        self.answers = decide_all(self.readings, metrics, allowed=allowed, confidence=confidence)

    def _settled(self) -> bool:
        """Return True if no more pairs are needed for the exit code."""
        deciding = [one for one in self.answers if one.metric.decides]
        if any(one.answer == "slower" for one in deciding):
            return True
        good = all(one.not_slower if self.settings.allowed > 0 else one.settled for one in deciding)
        return bool(deciding) and good

    def _outcome(self) -> CompareOutcome:
        return CompareOutcome(
            titles=self.contest.titles,
            answers=tuple(self.answers),
            exit_code=exit_code(self.answers),
            allowed=self.settings.allowed,
            plan=self.plan,
            looks_taken=self.looks,
            spent_s=time.monotonic() - self.began_s,
            budget_s=self.settings.budget_s,
            needed_s=self._needed_s(),
            launches=self.launches,
            samples=tuple(self.samples),
            readings=self.readings,
        )

    def _needed_s(self) -> float | None:
        if self.plan is None:
            # The spent time is spent again before the first round of a longer run.
            spent_s = time.monotonic() - self.began_s
            return spent_s + FEWEST_PAIRS * self.round_s + LEAST_LAUNCHES * self.setup_s
        more = [one.more_pairs for one in self.answers if one.metric.decides and one.more_pairs]
        if not more:
            return None
        pairs = max(more) + max(one.pairs for one in self.answers)
        launch_s = self.setup_s / self.plan.rounds
        return AFTERWARDS * pairs * (self.round_s + launch_s)


def compare_contest(
    contest: Contest,
    settings: CompareSettings,
    on_progress: OnProgress = lambda _: None,
    on_samples: OnSamples = lambda _: None,
) -> CompareOutcome:
    """Time two sides against each other until the answer is clear or the budget is spent.

    `on_samples` is given the samples of each launch, also of one that is cut short.

    Raises whatever the contest does, and MeasureError for a metric of 0 or less.
    """
    return _Comparison(contest, settings, on_progress, on_samples).run()
