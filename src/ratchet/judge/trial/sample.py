"""Sample a case: adjacent pairs, timed by the judge, on values revealed as its clock starts."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import Sample
from ratchet.base.measure.rounds import OpenLaunch, run_launches
from ratchet.judge.integrity.own_work import Watch, batches_to_watch
from ratchet.judge.trial.arms import (
    ONE_THREAD,
    REFERENCE,
    CandidateArm,
    RivalArm,
    RoundSeeds,
    rivals,
    warm,
)
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.open_problem import OpenProblem, Rivalry
from ratchet.judge.trial.plan import (
    MIN_LAUNCHES,
    TimingPlan,
    calls_of,
    calls_per_batch,
    plan_case,
)
from ratchet.judge.verdict import CandidateFault, Decided, TimedSample

ALONE_BATCHES = 4
"""Batches of the reference that are timed after the candidate's processes have ended, in each of
BEFORE_ALONE."""
BEFORE_ALONE = ((0.0, 0.1), (0.2, 0.0), (0.2, 0.02))
"""Seconds that a GPU rests before such a batch and is then kept busy: it is awake, if its clock
falls while it rests; cool, if its clock falls with heat; and both."""
CHEAP_CHECKS, CHEAP_S = 3, 0.15
"""Calls of a probe that are compared, each on another kind of values, if it takes no longer."""
LEAST_LEFT = 0.05
"""At least this share of a batch's time counts as work, however long the round trip is. A kernel
with a large gain then appears slower than it is, and never faster."""
LEAST_LOOKS = 6  # Looks at the order of the calls
ENOUGH_COMPARED, COMPARING_S = 60, 3.0
"""Calls that are compared before a kernel is `proven`, or their seconds by the quickest batch. Who
leaves out a twentieth of the timed calls is found in 95 % by 60, and in half by 15."""

Launch = Callable[[int], contextlib.AbstractContextManager[CandidateProcess]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseTiming:
    case: int
    name: str
    samples: list[Sample]
    checked: int  # Calls whose outputs were compared
    order_looks: int = 0  # Moments at which a compiled kernel's calls came one after another
    unseen: str = ""  # Why it is unknown whose code works, if it was seen at work too rarely
    among: int = 1  # Verdicts that share one chance of a false answer, each at a stricter level
    waited: float = 0.0  # Share of the rivals' time in which they waited for a core

    def as_json(self) -> list[TimedSample]:
        """Return the samples as the verdict keeps them."""
        return [TimedSample(case=self.name, **asdict(sample)) for sample in self.samples]


def time_case(
    case: int,
    rivalry: Rivalry,
    launch: Launch,
    watch: Watch | None = None,
    *,
    first_launch: int = 0,
    first_round: int = 0,
    budget_s: float,
) -> CaseTiming:
    """Time one case over several launches of all arms; the first rounds fix the plan.

    Launches and rounds are numbered from `first_launch` and `first_round`. With `watch`, some
    batches between the timed ones are sampled, at secret places. Raises CandidateFault if an output
    is wrong while it is timed, or if time ran out before enough was measured.
    """

    def run(calls: int) -> CaseTiming:
        return _CaseLaunches(case, rivalry, launch, watch, calls, first_launch, budget_s).run()

    opened, wanted = rivalry.opened, calls_of(rivalry, case)
    told = opened.told_of_fewer(wanted)
    try:
        timing = opened.with_fewer_calls(wanted, run)
    except MeasureError as error:
        untimed = Decided.untimed(f"the samples carry no answer: {error}")
        raise CandidateFault(untimed) from error
    fewer = opened.told_of_fewer(wanted)
    if fewer and (first_launch == 0 or fewer != told):  # a later look repeats nothing
        rivalry.record.note("memory for batches", fewer)
    numbered = [replace(one, round=first_round + one.round) for one in timing.samples]
    return replace(timing, samples=numbered)


class _CaseLaunches:
    """The launches of one look at a case; the first makes their plan."""

    def __init__(
        self,
        case: int,
        rivalry: Rivalry,
        launch: Launch,
        watch: Watch | None,
        calls: int,
        first_launch: int,
        budget_s: float,
    ) -> None:
        self._case, self._rivalry, self._opened = case, rivalry, rivalry.opened
        self._launch, self._watch = launch, watch
        self._first, self._budget_s = first_launch, budget_s
        self._calls = calls
        self._plan: TimingPlan | None = None
        self._samples: list[Sample] = []
        self._checked = self._looks = 0
        self._waited_s = self._ran_s = 0.0  # Of the rivals, in all launches
        self._watched: set[tuple[int, int]] = set()
        self._handed = secrets.randbelow(MIN_LAUNCHES)
        """The launch in which a probe's calls share their tensors."""
        self._warm_seeds = RoundSeeds(
            rivalry.opened, fresh=False
        )  # no warm batch is timed or compared

    def run(self) -> CaseTiming:
        rng = np.random.default_rng(self._opened.rng.getrandbits(64))
        run_launches(self._open, more=self._more, rng=rng, first=self._first, keep=self._keep)
        assert self._plan is not None
        name = self._opened.problem.cases[self._case].name
        detail = (
            f"{self._checked} calls were compared, at most {self._plan.calls_checked} of a batch "
            f"of {self._calls}"
        )
        if self._opened.variations(self._case):
            detail += "; batches with values of hidden cases came between them"
        if self._looks:
            detail += (
                f"; at {self._looks} moments the calls of a batch were seen to come in their order"
            )
        self._rivalry.record.note(f"right while timed on {name}", detail)
        return CaseTiming(
            case=self._case,
            name=name,
            samples=self._samples,
            checked=self._checked,
            order_looks=self._looks,
            among=self._rivalry.among,
            waited=self._waited_s / self._ran_s if self._ran_s else 0.0,
        )

    def _more(self, launch: int) -> bool:
        return self._plan is None or launch < self._first + self._plan.launches

    def _keep(self, samples: Sequence[Sample]) -> None:
        round_trip_s = self._rivalry.device_clock.round_trip_s(self._case)
        self._samples += without_round_trip(samples, round_trip_s)

    @contextlib.contextmanager
    def _open(self, launch: int) -> Iterator[OpenLaunch]:
        rivalry, opened, case = self._rivalry, self._opened, self._case
        calls, watch = self._calls, self._watch
        with (
            self._launch(launch) as process,
            rivals(process, rivalry, case) as reference,
            contextlib.closing(CandidateArm(process, rivalry, case, watch)) as candidate,
        ):
            arms: list[RivalArm | CandidateArm] = [*reference, candidate]
            for arm in arms:
                arm.begin(self._warm_seeds)
            round_s = sum(warm(arm, calls) for arm in arms)
            others = [arm for arm in reference if arm.name != ONE_THREAD]
            if others != list(reference) and all(arm.process.works_alone for arm in others):
                rivalry.alone.add(case)
                arms = [*others, candidate]
            index = launch - self._first
            plan = self._plan or self._make_plan(round_s, len(arms), process, candidate)
            compared = opened.rng.sample(range(plan.rounds), plan.checks)
            candidate.sample(dict.fromkeys(compared, plan.calls_checked))
            handed = index == self._handed
            if handed or opened.variations(case) or not process.returns_outputs:
                candidate.probe_before(_probe(plan, case, opened), handed=handed)
            candidate.order_looks = self._looks
            candidate.watch_before({number for at, number in self._watched if at == index})
            seeds = RoundSeeds(opened, arms=len(arms), rounds=plan.rounds)
            for arm in arms:
                arm.begin(seeds)
            rivalry.device_clock.begin(case)
            yield OpenLaunch(
                arms=arms,
                rounds=plan.rounds,
                iterations=calls,
                on_round=lambda *_: candidate.check_due(),
            )
            self._checked += candidate.checked
            self._looks = candidate.order_looks
            timed = [arm for arm in reference if arm in arms]
            self._waited_s += sum(arm.waited_s for arm in timed)
            self._ran_s += sum(arm.ran_s for arm in timed)
            if watch is not None and not self._more(launch + 1):
                candidate.watch_until_enough(calls, watch)
            process.pause()

    def _make_plan(
        self, round_s: float, arms: int, process: CandidateProcess, candidate: CandidateArm
    ) -> TimingPlan:
        """Plan the launches, once the first is warm."""
        planned = plan_case(
            self._case,
            self._opened,
            round_s=round_s,
            arms=arms,
            calls=self._calls,
            budget_s=self._budget_s,
            first_call_s=process.first_call_s,
        )
        self._plan = planned
        if self._watch is not None:
            self._watched = _watched(planned, candidate.batch_s, self._opened)
        return planned


def time_alone(case: int, rivalry: Rivalry) -> list[float]:
    """Return the reference's seconds per call in each batch, with no candidate beside it.

    A GPU's clock follows what it did before, so the fastest of BEFORE_ALONE counts.
    """
    arm = RivalArm(REFERENCE, rivalry.rivals.lasting[REFERENCE], rivalry, case, "copied")

    def run(calls: int) -> list[float]:
        warm(arm, calls)
        rivalry.device_clock.begin(case)
        found = []
        for arm.rest_s, arm.load_s in BEFORE_ALONE:
            found.append([arm.run(calls).wall_time_s for _ in range(ALONE_BATCHES)])
        round_trip_s = rivalry.device_clock.round_trip_s(case)
        times = min(found, key=statistics.median)
        return [_work_s(time_s, round_trip_s) / calls for time_s in times]

    return rivalry.opened.with_fewer_calls(calls_of(rivalry, case), run)


def compare_more(timing: CaseTiming, rivalry: Rivalry, launch: Launch) -> None:
    """Compare more calls, in a process and batches like those that were timed, if those were few.

    Where comparing takes long, some dozen calls were: a kernel that leaves out every tenth once it
    is timed would often be lucky. Raises CandidateFault if a call is wrong.
    """
    calls, batches, quickest_s = calls_of(rivalry, timing.case), 0, 0.0
    if timing.checked >= ENOUGH_COMPARED:
        return
    with (
        launch(0) as process,
        contextlib.closing(CandidateArm(process, rivalry, timing.case)) as arm,
    ):
        arm.begin(RoundSeeds(rivalry.opened, fresh=False))
        warm(arm, calls)
        arm.begin(RoundSeeds(rivalry.opened))
        arm.sample(dict.fromkeys(range(ENOUGH_COMPARED), calls))
        while timing.checked + arm.checked < ENOUGH_COMPARED and (
            not batches or batches * quickest_s < COMPARING_S
        ):
            began = time.perf_counter()
            arm.run(calls)
            arm.check_due()
            took_s = time.perf_counter() - began
            batches, quickest_s = batches + 1, min(took_s, quickest_s or took_s)
        process.pause()
    detail = f"{arm.checked} more calls were compared, all of each batch"
    rivalry.record.note(f"right while timed on {timing.name}, again", detail)


def see_order(timing: CaseTiming, rivalry: Rivalry, process: CandidateProcess) -> bool:
    """Return True once a compiled kernel's calls were seen to come in order; False if too rarely.

    Raises CandidateFault if they do not come in order.
    """
    facts = rivalry.opened.cases[timing.case]
    calls = calls_per_batch(facts.time_s, facts.bytes)
    candidate = CandidateArm(process, rivalry, timing.case)
    candidate.order_looks = timing.order_looks
    if calls > 1:
        warm(candidate, calls)
        candidate.probe_until_seen(calls, LEAST_LOOKS)
        process.pause()
    return calls == 1 or candidate.order_looks >= LEAST_LOOKS


def watch_case(case: int, rivalry: Rivalry, process: CandidateProcess, watch: Watch) -> None:
    """Sample a case that is not timed, one call at a time; raise what `Watch.conclude` does."""
    candidate = CandidateArm(process, rivalry, case, watch)
    candidate.run(1)
    candidate.be_watched(1)
    candidate.watch_until_enough(1, watch)
    rivalry.record.evidence.append(watch.evidence())
    watch.conclude()


def without_round_trip(samples: Sequence[Sample], round_trip_s: float) -> list[Sample]:
    """Return the samples of a launch without each batch's round trip."""
    return [
        replace(one, wall_time_s=_work_s(one.wall_time_s, round_trip_s / one.iterations))
        for one in samples
    ]


def _work_s(time_s: float, round_trip_s: float) -> float:
    return max(LEAST_LEFT * time_s, time_s - round_trip_s)


def _watched(plan: TimingPlan, batch_s: float, opened: OpenProblem) -> set[tuple[int, int]]:
    places = list(itertools.product(range(plan.launches), range(plan.rounds)))
    count = batches_to_watch(batch_s, len(opened.timed))
    return set(secrets.SystemRandom().sample(places, min(count, len(places))))


def _probe(plan: TimingPlan, case: int, opened: OpenProblem) -> dict[int, int]:
    """Draw the batch of a launch that a probe precedes, and how many of its calls are compared."""
    kinds = opened.variations(case)
    least = CHEAP_CHECKS if CHEAP_CHECKS * opened.check_time_s[case] < CHEAP_S else 1
    return {secrets.randbelow(plan.rounds): max(1, min(kinds, max(least, plan.calls_checked)))}
