"""Time some candidates of one screening: a few rounds of all arms, each on the same fresh values.

An arm that is far behind leaves early, and the time goes to those that are close. The estimate is
the median of log(reference/candidate) over an arm's rounds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Final

import numpy as np

from ratchet.base.measure import ArmLeft, Sample, Timing
from ratchet.base.measure.estimate import compare, log_ratios
from ratchet.base.measure.rounds import run_rounds
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.targets import targets
from ratchet.judge.trial.arms import (
    REFERENCE,
    RivalArm,
    RoundArm,
    RoundSeeds,
    output_mode,
    run_batch,
    warm,
)
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.kernel_checks import check_call
from ratchet.judge.trial.open_problem import CaseFacts, OpenProblem, Rivalry
from ratchet.judge.trial.plan import calls_of
from ratchet.judge.trial.reference import RivalProcess
from ratchet.judge.trial.sample import without_round_trip
from ratchet.judge.verdict import CandidateFault, Decided, Screening, ScreeningStatus, fault

BEST: Final = "best"
ROUNDS: Final = 8
LEAVES: Final = {3: 0.25, 4: 0.75}
"""After this many rounds an arm leaves if it has less than this share of the leader's speed."""
LEAST_ROUNDS: Final = 3
RESAMPLES: Final = 400
CHEAP_S: Final = 0.02  # If comparing a call takes no longer, one is compared in every round
FEW_CHECKS: Final = 2
GPU_SHARE: Final = 4
"""On a GPU a batch takes this part of what one of a verdict may, because more arms hold one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """One candidate's estimate on one case."""

    ratio: float
    low: float
    high: float
    time_s: float
    against_best: float | None
    rounds: int
    smaller: str = ""  # Why a batch had fewer calls than were wanted


class SharedRounds:
    """The seeds of each round, and its compared call: the same for every arm."""

    def __init__(self, opened: OpenProblem, calls: int, *, check_s: float) -> None:
        """Compare a call of each round, or of a few secret rounds if comparing takes long."""
        rng = opened.rng
        self.seeds = RoundSeeds(opened)
        rounds = set(range(ROUNDS))
        if check_s > CHEAP_S:  # one that every arm is in, and others
            rounds = {rng.randrange(LEAST_ROUNDS), *rng.sample(range(ROUNDS), FEW_CHECKS)}
        self.compared: Mapping[int, int] = {index: rng.randrange(calls) for index in rounds}
        """The call, by its round."""


class ScreenedArm(RoundArm):
    """A candidate in its sandbox. The judge compares the outputs of one secret call of a round."""

    def __init__(
        self,
        name: str,
        process: CandidateProcess,
        rivalry: Rivalry,
        case: int,
        lose: Callable[[Decided], None],
    ) -> None:
        """`lose` is called once it is out, with the reason."""
        super().__init__(name, rivalry, case)
        self.process = process
        self.is_out = False
        self._lose = lose
        self._rounds: SharedRounds | None = None

    def begin(self, seeds: RoundSeeds, rounds: SharedRounds | None = None) -> None:
        """Begin warm rounds, or timed `rounds`."""
        super().begin(seeds)
        self._rounds = rounds

    def warm(self, calls: int) -> None:
        """Run untimed batches; one is enough for a worker that keeps no heap of results."""
        with contextlib.suppress(ArmLeft):
            if self.process.returns_outputs:
                warm(self, calls)
            else:
                self.run(calls)

    def run(self, iterations: int) -> Timing:
        """Time one batch of calls while the reference worker is stopped."""
        try:
            return self._run(iterations)
        except CandidateFault as error:
            self.is_out = True
            self._lose(error.decided)
            raise ArmLeft from error

    def _run(self, iterations: int) -> Timing:
        opened, rounds = self._opened, self._rounds
        limit_s = opened.cases[self._case].limit_s(iterations)
        with self._drawn(iterations) as batch:
            wall_time_s, cpu_time_s, codes = run_batch(self.process, opened, batch, limit_s)
            call = None if rounds is None else rounds.compared.get(self._batch)
            if call is not None:
                answer = check_call(self.process, opened, batch, call, codes[call], again=True)
                if not answer.passed or any(codes):
                    name = opened.problem.cases[self._case].name
                    raise fault("wrong", f"wrong on {name} while it was timed: {answer.detail}")
        self._device_clock.note(self._case, self.name, wall_time_s, self.process.device_s)
        self._batch += 1
        return Timing(wall_time_s=wall_time_s, cpu_time_s=cpu_time_s)


def time_together(
    case: int,
    rivalry: Rivalry,
    arms: Sequence[ScreenedArm],
    *,
    check_s: float,
    budget_s: float,
) -> dict[str, Timed]:
    """Time these arms and the reference on one case; return an estimate for each right arm.

    The best so far comes first. The reference is a new process; on a GPU one lasts. Comparing one
    call takes about `check_s` seconds. Only the first rounds may begin after `budget_s` seconds.
    Raises JudgeError if the reference fails.
    """
    opened = rivalry.opened

    def run(calls: int) -> dict[str, Timed]:
        left = [arm for arm in arms if not arm.is_out]
        if not [arm for arm in left if arm.name != BEST]:
            return {}
        return _timed(case, rivalry, left, calls, check_s=check_s, budget_s=budget_s)

    wanted = calls_of(rivalry, case, share=GPU_SHARE)
    found = opened.with_fewer_calls(wanted, run)
    words = opened.told_of_fewer(wanted)
    return {name: replace(one, smaller=words) for name, one in found.items()}


def _timed(
    case: int,
    rivalry: Rivalry,
    arms: Sequence[ScreenedArm],
    calls: int,
    *,
    check_s: float,
    budget_s: float,
) -> dict[str, Timed]:
    """Time these arms in batches of so many calls."""
    opened = rivalry.opened
    with _reference(rivalry) as rival:
        outputs = output_mode(arms[-1].process, opened)
        reference = RivalArm(REFERENCE, rival, rivalry, case, outputs)
        warm_seeds = RoundSeeds(opened, fresh=False)  # drawn once: no warm batch is compared
        reference.begin(warm_seeds)
        for arm in arms:
            arm.begin(warm_seeds)
        warm(reference, calls)
        for arm in arms:
            arm.warm(calls)
        kept = [arm for arm in arms if not arm.is_out]
        if not kept:
            return {}
        rounds = SharedRounds(opened, calls, check_s=check_s)
        end_s = min(time.monotonic() + budget_s, opened.clock.deadline)
        rivalry.device_clock.begin(case)
        samples = without_round_trip(
            _rounds(reference, kept, calls, opened, rounds, end_s),
            rivalry.device_clock.round_trip_s(case),
        )
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.arm, []).append(sample)
    names = [name for name, own in by_name.items() if name != REFERENCE and len(own) > 1]
    return {name: _estimate(name, by_name) for name in names}


@contextlib.contextmanager
def _reference(rivalry: Rivalry) -> Iterator[RivalProcess]:
    """Yield the reference's process. On a GPU, where it opens that, one lasts for the screening."""
    rivals, opened = rivalry.rivals, rivalry.opened
    if opened.accelerator is None:
        rival = rivals.start(threads=opened.reference.threads)
        try:
            yield rival
        finally:
            rivals.end(rival)
        return
    if REFERENCE not in rivals.lasting:
        rivals.lasting[REFERENCE] = rivals.start(threads=opened.reference.threads)
    yield rivals.lasting[REFERENCE]


def _rounds(
    reference: RivalArm,
    arms: Sequence[ScreenedArm],
    calls: int,
    opened: OpenProblem,
    rounds: SharedRounds,
    end_s: float,
) -> list[Sample]:
    """Return the samples of the arms that did not fail."""

    def leave(index: int, samples: Sequence[Sample]) -> Set[str]:
        if index >= LEAST_ROUNDS and time.monotonic() > end_s:
            return {REFERENCE, *(arm.name for arm in arms)}
        return _slow(index, samples, LEAVES[index]) if index in LEAVES else set()

    reference.begin(rounds.seeds)
    for candidate in arms:
        candidate.begin(rounds.seeds, rounds)
    samples = run_rounds(
        [reference, *arms],
        rounds=ROUNDS,
        launch=0,
        rng=np.random.default_rng(opened.rng.getrandbits(64)),
        iterations=calls,
        leave=leave,
    )
    failed = {arm.name for arm in arms if arm.is_out}
    return [sample for sample in samples if sample.arm not in failed]


def _slow(index: int, samples: Sequence[Sample], share: float) -> set[str]:
    """Return the arms with less than this share of the leader's speed; the best so far stays."""
    racing = {sample.arm for sample in samples if sample.round == index - 1} - {REFERENCE}
    speeds = {
        name: float(
            np.exp(np.median(np.concatenate(log_ratios(samples, baseline=REFERENCE, new=name))))
        )
        for name in racing
    }
    least = share * max(speeds.values(), default=0.0)
    return {name for name, speed in speeds.items() if name != BEST and speed < least}


def _estimate(name: str, samples: dict[str, list[Sample]]) -> Timed:
    own = samples[name]
    found = compare(
        [*samples[REFERENCE], *own], baseline=REFERENCE, new=name, floor=None, resamples=RESAMPLES
    )
    beside = None
    if name != BEST and len(samples.get(BEST, ())) > 1:
        logs = np.concatenate(log_ratios([*samples[BEST], *own], baseline=BEST, new=name))
        beside = float(np.exp(np.median(logs)))
    return Timed(
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        time_s=float(np.median([sample.wall_time_s for sample in own])),
        against_best=beside,
        rounds=len(own),
    )


# One candidate of a screening: its time limits, what is known of it, and its answer.

SLOWEST_FACTOR: Final = 30.0
SLOWEST_FLOOR_S: Final = 1.0
"""A call may be at work for this long, plus this many times the reference's time."""
STEP_S: Final = 10.0
"""Work that a step of a candidate's process may take, such as importing its source."""
FIRST_CALL_S: Final = 20.0  # Work that a Python kernel's first call may take, compilers included


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickClock(Clock):
    """A clock whose steps are short: a slow kernel needs a verdict instead."""

    @property
    def step_limit_s(self) -> float:
        return STEP_S


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickFacts(CaseFacts):
    """A case on which the judge gives up a candidate sooner than in a verdict."""

    def limit_s(self, calls: int) -> float:
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s


@dataclass(slots=True)
class Entrant:
    """One candidate of a screening, and what is known of it so far."""

    kernel: Kernel
    name: str
    runnable: Kernel
    on_gpu: bool = False
    status: ScreeningStatus | None = None
    reason: str = ""
    evidence: list[str] = field(default_factory=list)
    timings: list[Timed] = field(default_factory=list)
    process: CandidateProcess | None = None

    @property
    def is_out(self) -> bool:
        return self.status is not None

    @property
    def is_interpreted(self) -> bool:
        """True if its launches run in Triton's interpreter."""
        return self.kernel.language == "triton" and not self.on_gpu

    def decide(self, decided: Decided) -> None:
        """Answer it; its timings do not count."""
        if self.status is None:
            right = decided.status in ("proven", "correct")  # and not timed
            self.status = "unmeasured" if right else decided.status
            self.reason = decided.reason
            self.evidence.append(self.reason)
            self.timings.clear()
        self.end()

    def end(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    @contextlib.contextmanager
    def on_trial(self) -> Iterator[None]:
        """Take a CandidateFault raised inside as this candidate's answer."""
        try:
            yield
        except CandidateFault as error:
            decided = error.decided
            if self.is_interpreted:
                elsewhere = targets()
                decided = elsewhere.without_blame(decided, elsewhere.INTERPRETER)
            self.decide(decided)

    def answer(self) -> Screening:
        if self.status is None:
            self.decide(Decided("unmeasured", "the screening did not come to it"))
        assert self.status is not None
        answer = Screening(
            kernel_hash=self.kernel.hash,
            status=self.status,
            reason=self.reason,
            evidence=tuple(self.evidence),
        )
        if self.status != "screened":
            return answer
        beside = [one.against_best for one in self.timings if one.against_best is not None]
        return replace(
            answer,
            ratio=geometric_mean(one.ratio for one in self.timings),
            low=geometric_mean(one.low for one in self.timings),
            high=geometric_mean(one.high for one in self.timings),
            time_s=geometric_mean(one.time_s for one in self.timings),
            against_best=geometric_mean(beside) if len(beside) == len(self.timings) else None,
        )
