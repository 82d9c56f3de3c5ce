"""Is a kernel faster? Adjacent pairs, the judge's clock, fresh values revealed when it starts."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ratchet.judge.candidate_process import CandidateProcess, Decided
from ratchet.judge.kernel_checks import (
    COMPILES,
    SLOWEST_FLOOR_S,
    Batch,
    OpenProblem,
    verdict_of_call,
)
from ratchet.judge.late_writes import OutputSpots
from ratchet.judge.own_work import LOOKING_S, PATIENCE_S, Watch, batches_to_watch
from ratchet.judge.verdict import Evidence, TimedSample
from ratchet.measure.arm import Arm, Timing
from ratchet.measure.rounds import run_rounds
from ratchet.measure.samples import Sample

REFERENCE, TWIN, CANDIDATE = "reference", "reference again", "candidate"
COMPILED = "torch.compile of the reference"
ONE_THREAD = "reference on one thread"
"""A rival where calls are short: waking a second thread can cost more than it gives, and it depends
on the host. Then it is the reference that must be beaten, not the wake-up."""
SHORT_CALL_S = 0.001
LOOKS = 3
"""At most, each at what the one before left undecided (`group_sequential`)."""
LAUNCHES = 3
MIN_LAUNCHES = 2
"""One launch says nothing about the next."""
MIN_ROUNDS, MAX_ROUNDS = 4, 16
TARGET_BATCH_S = 0.002
"""A batch this long hides the round trip to a worker (about 0.1 ms, in both arms): what is left of
it draws a ratio towards 1."""
MAX_CALLS = 64
WARM_CALLS, WARM_S = 3, 0.5
"""Untimed calls at the start of a launch, as many as take about this long: a call's results of many
megabytes lie on pages that are new to the process until the third (see `arm_environment`)."""
REFERENCE_DRAWS = 8
"""Different draws in a batch of the reference's, which hides nothing from itself. Every call still
has memory of its own."""
MAX_BATCH_BYTES = 128 << 20
GPU_TARGET_BATCH_S, GPU_MAX_CALLS, GPU_MAX_BATCH_BYTES = 0.02, 512, 1 << 30
"""The same on a GPU: mapping takes longer there, calls are shorter and memory is larger; more than
that would take too long to draw, for every call has values of its own."""
ALONE_BATCHES = 6
"""Batches of the reference that are timed when the candidate's processes are gone."""
CHECK_SHARE = 0.5
"""Comparing takes at most this share of the time that the arms take, but one batch of each
launch is always compared."""
SHARE_OF_TIME = 0.8
SHORT_BUDGET_S, BUDGET_S, LONG_BUDGET_S = 0.15, 0.5, 1.5
"""The first, second and third look at one case take about this long at most, if the fewest rounds
allow it."""

Launch = Callable[[int], contextlib.AbstractContextManager[CandidateProcess]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseTiming:
    """The samples of one timed case."""

    case: int
    name: str
    samples: list[Sample]
    checked: int
    """Timed calls whose outputs were compared."""

    def as_json(self) -> list[TimedSample]:
        """The samples as the verdict keeps them."""
        return [TimedSample(case=self.name, **asdict(sample)) for sample in self.samples]


class _ReferenceArm:
    """The rival: runs in the reference worker, on memory revealed as the candidate's is."""

    def __init__(self, name: str, opened: OpenProblem, case: int, copy_out: bool) -> None:
        self.name = name
        self._opened = opened
        self._case = case
        self._copy_out = copy_out

    def run(self, iterations: int) -> Timing:
        """One batch of calls of the reference, drawn anew as the candidate's is.

        Memory that was mapped before is faster the next time: kept for a launch, it made a
        reference that moves 88 MB 2.5 times as fast as itself in the candidate's place.
        """
        reference, left_s = self._opened.reference, self._opened.clock.left_s
        with self._opened.draw(
            self._case, iterations, writable_inputs=False, distinct=REFERENCE_DRAWS
        ) as batch:
            reference.ask(timeout_s=left_s, do="prepare", batch=batch.number)
            self._opened.flush()
            on_gpu = self._opened.accelerator is not None
            spots = OutputSpots(batch.layout, batch.memories, batch.read) if on_gpu else None
            began = time.perf_counter()
            reply = reference.ask(
                timeout_s=left_s,
                do="go",
                batch=batch.number,
                copy_out=self._copy_out,
                compiled=self.name == COMPILED,
                threads=1 if self.name == ONE_THREAD else reference.threads,
            )
            if spots is not None:  # as for a candidate
                spots.read()
            wall_time_s = time.perf_counter() - began
        self._opened.device_clock.note(self._case, self.name, wall_time_s, reply["device_s"])
        return Timing(wall_time_s=wall_time_s, cpu_time_s=float(reply["cpu_time_s"]))


class _CandidateArm:
    """The kernel: runs in its sandbox, and has a secret call of secret batches compared."""

    name = CANDIDATE

    def __init__(
        self, candidate: CandidateProcess, opened: OpenProblem, case: int, watch: Watch | None
    ) -> None:
        self._candidate = candidate
        self._opened = opened
        self._case = case
        self._watch = watch
        self._watched: set[int] = set()
        self.batch_s = math.inf
        """How long the shortest batch took."""
        self.checked = 0
        self._sampled: set[int] = set()
        self._batch = 0

    def sample(self, batches: set[int]) -> None:
        """From now on compare these batches only, counted from here; secret to the candidate."""
        self._sampled, self._batch = batches, 0

    def watch_before(self, batches: set[int]) -> None:
        """Before these batches, counted as in `sample`, one more is looked at, like any other."""
        self._watched = batches

    def run(self, iterations: int) -> Timing:
        """One batch of calls of the kernel; the reference worker stands still meanwhile."""
        if self._batch in self._watched:
            self.be_watched(iterations)
        with self._opened.draw(self._case, iterations, writable_inputs=False) as batch:
            wall_time_s, cpu_time_s, codes = self._go(batch, iterations, None)
            if self._batch in self._sampled:
                self._check_one(batch, codes)
            elif any(codes):
                raise Decided("wrong", f"right before it was timed, then it returned {codes}")
        self._opened.device_clock.note(self._case, self.name, wall_time_s, self._candidate.device_s)
        self._batch += 1
        self.batch_s = min(self.batch_s, wall_time_s)
        return Timing(wall_time_s=wall_time_s, cpu_time_s=cpu_time_s)

    def be_watched(self, iterations: int) -> None:
        """A batch that is not timed: the judge looks whose code its threads stand in."""
        with self._opened.draw(self._case, iterations, writable_inputs=False) as batch:
            self._go(batch, iterations, self._watch)

    def _go(
        self, batch: Batch, iterations: int, watch: Watch | None
    ) -> tuple[float, float, list[int]]:
        limit_s = self._opened.cases[self._case].limit_s(iterations)
        if self._opened.accelerator is not None and self.batch_s == math.inf:
            limit_s += COMPILES * SLOWEST_FLOOR_S  # Triton compiles in every process anew
        meanwhile = None
        if watch is not None:
            meanwhile = watch.looks(self._candidate, self.batch_s, iterations)
        self._candidate.resume()
        self._candidate.prepare(batch.layout, batch.memories, batch.read)
        self._opened.flush()
        with self._opened.reference_rests():
            return self._candidate.go(
                batch.memories, iterations, limit_s=limit_s, meanwhile=meanwhile
            )

    def _check_one(self, batch: Batch, codes: list[int]) -> None:
        call = self._opened.rng.randrange(len(codes))  # drawn after the answers are in
        check = self._opened.check(batch, call, codes[call])
        passed, detail = verdict_of_call(codes[call], check)
        if any(codes) or not passed:
            raise Decided("wrong", f"right before it was timed, wrong while it was: {detail}")
        self.checked += 1


def time_case(
    case: int,
    opened: OpenProblem,
    launch: Launch,
    evidence: list[Evidence],
    watch: Watch | None = None,
    *,
    first_launch: int = 0,
    first_round: int = 0,
    budget_s: float = BUDGET_S,
) -> CaseTiming:
    """Time one case over several launches of the candidate; the plan is fixed by the first rounds.

    Launches and rounds are numbered from `first_launch` and `first_round`. With `watch`, some
    batches beside the timed ones are looked at, at places drawn in secret.
    Decided when an output is wrong while it is timed, or time ran out before enough was measured.
    """
    facts, name = opened.cases[case], opened.problem.cases[case].name
    calls = calls_per_batch(facts.time_s, facts.bytes, gpu=opened.accelerator is not None)
    rng = np.random.default_rng(opened.rng.getrandbits(64))
    samples: list[Sample] = []
    plan, checked, watched = None, 0, set[tuple[int, int]]()
    for index in range(LAUNCHES):
        if plan is not None and index >= plan.launches:
            break
        with launch(first_launch + index) as process:
            candidate = _CandidateArm(process, opened, case, watch)
            arms: list[Arm] = [*_rivals(process, opened, case), candidate]
            if plan is None:
                plan = _plan(arms, case, calls, opened, budget_s)
                watched = _watched(plan, candidate.batch_s, opened) if watch is not None else set()
            else:
                warm(candidate, calls)
            candidate.sample(set(opened.rng.sample(range(plan.rounds), plan.checks)))
            candidate.watch_before({number for at, number in watched if at == index})
            samples += run_rounds(
                arms, rounds=plan.rounds, launch=first_launch + index, rng=rng, iterations=calls
            )
            checked += candidate.checked
            if watch is not None and index + 1 == plan.launches:
                _watch_until_enough(candidate, calls, watch)
            process.pause()
    detail = f"{checked} calls were compared while timing, at most one of each batch of {calls}"
    evidence.append(Evidence(check=f"right while timed on {name}", passed=True, detail=detail))
    numbered = [replace(sample, round=first_round + sample.round) for sample in samples]
    return CaseTiming(case=case, name=name, samples=numbered, checked=checked)


def time_alone(case: int, opened: OpenProblem) -> list[float]:
    """Seconds a call of the reference, of each batch, while no candidate could be in its way."""
    facts = opened.cases[case]
    calls = calls_per_batch(facts.time_s, facts.bytes, gpu=opened.accelerator is not None)
    arm = _ReferenceArm(REFERENCE, opened, case, copy_out=True)
    warm(arm, calls)
    return [arm.run(calls).wall_time_s / calls for _ in range(ALONE_BATCHES)]


def watch_case(case: int, opened: OpenProblem, process: CandidateProcess, watch: Watch) -> None:
    """Look at a case that is not timed, one call at a time."""
    candidate = _CandidateArm(process, opened, case, watch)
    candidate.run(1)
    candidate.be_watched(1)
    _watch_until_enough(candidate, 1, watch)


def _watch_until_enough(candidate: _CandidateArm, calls: int, watch: Watch) -> None:
    began = time.perf_counter()
    while not watch.plenty:
        if time.perf_counter() - began > (LOOKING_S if watch.enough else PATIENCE_S):
            return
        candidate.be_watched(calls)


def _watched(plan: _Plan, batch_s: float, opened: OpenProblem) -> set[tuple[int, int]]:
    """Launch and round of each batch that is looked at."""
    places = list(itertools.product(range(plan.launches), range(plan.rounds)))
    count = batches_to_watch(batch_s, len(opened.timed))
    return set(secrets.SystemRandom().sample(places, min(count, len(places))))


def _rivals(process: CandidateProcess, opened: OpenProblem, case: int) -> list[_ReferenceArm]:
    names = [REFERENCE, TWIN, *([COMPILED] if opened.has_compiled else [])]
    on_cores = opened.accelerator is None and opened.reference.threads > 1
    if on_cores and opened.cases[case].time_s < SHORT_CALL_S:
        names.append(ONE_THREAD)
    return [_ReferenceArm(name, opened, case, process.returns_outputs) for name in names]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Launches, rounds of each, and how many of its batches are compared; fixed once made."""

    launches: int
    rounds: int
    checks: int


def warm(arm: Arm, calls: int) -> float:
    """Let an arm run until its heap holds what a call needs; how long the last batch took."""
    spent_s, took_s = 0.0, 0.0
    for _ in range(math.ceil(WARM_CALLS / calls)):
        began = time.perf_counter()
        arm.run(calls)
        took_s = time.perf_counter() - began
        spent_s += took_s
        if spent_s > WARM_S:
            break
    return took_s


def _plan(
    arms: Sequence[Arm],
    case: int,
    calls: int,
    opened: OpenProblem,
    budget_s: float,
) -> _Plan:
    """What the time allows: the last warm batch of every arm tells what a round costs.

    A comparison (float64) may cost more than the rest of the round; then fewer batches have one.
    """
    run_s, check_s = sum(warm(arm, calls) for arm in arms), opened.check_time_s[case]
    share = min(1.0, CHECK_SHARE * run_s / check_s) if check_s > 0 else 1.0
    launch_s = MIN_ROUNDS * run_s + check_s
    room_s = SHARE_OF_TIME * opened.clock.left_s / max(1, len(opened.timed))
    launches = min(LAUNCHES, int(room_s / launch_s))
    if launches < MIN_LAUNCHES:
        raise Decided(
            "unmeasured",
            f"right, but timing it takes {MIN_LAUNCHES * launch_s:.0f} s or more and the time "
            "limit leaves no room for that; raise it",
        )
    rounds = round_count(run_s + share * check_s, budget_s)
    fitting = int((room_s / launches - rounds * run_s) / check_s) if check_s > 0 else rounds
    checks = max(1, min(rounds, fitting, math.ceil(share * rounds)))
    return _Plan(launches=launches, rounds=rounds, checks=checks)


def round_count(round_s: float, budget_s: float) -> int:
    """How many rounds of a launch fit the budget, an even number so that orders balance."""
    fitting = int(budget_s / (LAUNCHES * round_s))
    return max(MIN_ROUNDS, min(MAX_ROUNDS, fitting)) // 2 * 2


def calls_per_batch(time_s: float, size_bytes: float, *, gpu: bool = False) -> int:
    """Calls in a batch: long enough to hide the round trip, small enough for memory."""
    target_s, most = (GPU_TARGET_BATCH_S, GPU_MAX_CALLS) if gpu else (TARGET_BATCH_S, MAX_CALLS)
    wanted = math.ceil(target_s / max(time_s, 1e-7))
    fitting = int((GPU_MAX_BATCH_BYTES if gpu else MAX_BATCH_BYTES) / max(size_bytes, 1.0))
    return max(1, min(wanted, fitting, most))
