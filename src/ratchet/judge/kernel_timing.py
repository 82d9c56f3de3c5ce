"""Is a kernel faster? Adjacent pairs, the judge's clock, fresh values revealed when it starts."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from ratchet.judge.candidate_process import CandidateProcess, NotTimed
from ratchet.judge.kernel_checks import OpenProblem
from ratchet.judge.own_work import Watch, batches_to_watch
from ratchet.judge.timed_arms import (
    REFERENCE,
    CandidateArm,
    ReferenceArm,
    RoundSeeds,
    rivals,
    warm,
)
from ratchet.judge.verdict import Evidence, TimedSample
from ratchet.measure.rounds import run_rounds
from ratchet.measure.samples import Sample

LOOKS = 3
"""At most, each at what the one before left undecided (`group_sequential`)."""
LAUNCHES = 3
MIN_LAUNCHES = 2
"""One launch says nothing about the next."""
MIN_ROUNDS, MAX_ROUNDS = 4, 16
TARGET_BATCH_S = 0.001
"""A batch this long hides most of the round trip to a worker (about 0.1 ms, in both arms): what is
left of it draws a ratio towards 1. Longer ones scatter as much from round to round, and cost more:
on two shared cores 0.5, 1 and 2 ms had a standard deviation of 0.21 to 0.27, 0.22 to 0.26 and 0.17
to 0.24 (of the logarithm, 190 rounds of eight kernels each)."""
MAX_CALLS = 32
MAX_BATCH_BYTES = 128 << 20
GPU_TARGET_BATCH_S, GPU_MAX_CALLS, GPU_MAX_BATCH_BYTES = 0.02, 512, 1 << 30
"""The same on a GPU: mapping takes longer there, calls are shorter and memory is larger; more than
that would take too long to draw, for every call has values of its own."""
ALONE_BATCHES = 6
"""Batches of the reference that are timed when the candidate's processes are gone."""
CHECK_SHARE = 0.5
"""Comparing takes at most this share of the time that the arms take, but one batch of each
launch is always compared."""
MORE_SHARE = 0.05
"""Where comparing is cheap, several calls of a batch are compared, in this share of the time."""
MOST_CHECKED = 8
CHEAP_CHECKS, CHEAP_S = 3, 0.15
"""So many calls of a probe are compared, each of another kind of values, if it takes no longer."""
LEAST_LOOKS = 6
"""At the order of the calls."""
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
    """Calls whose outputs were compared."""
    order_looks: int = 0
    """Moments at which a compiled kernel's calls were seen to come one after another."""
    unseen: str = ""
    """Why nobody can say whose code works, where it was seen at work too rarely."""

    def as_json(self) -> list[TimedSample]:
        """The samples as the verdict keeps them."""
        return [TimedSample(case=self.name, **asdict(sample)) for sample in self.samples]


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
    """Time one case over several launches of all arms; the plan is fixed by the first rounds.

    Launches and rounds are numbered from `first_launch` and `first_round`. With `watch`, some
    batches beside the timed ones are looked at, at places drawn in secret.
    Decided when an output is wrong while it is timed, or time ran out before enough was measured.
    """
    facts, name = opened.cases[case], opened.problem.cases[case].name
    calls = calls_per_batch(facts.time_s, facts.bytes, gpu=opened.accelerator is not None)
    rng = np.random.default_rng(opened.rng.getrandbits(64))
    samples: list[Sample] = []
    plan, checked, looks, watched = None, 0, 0, set[tuple[int, int]]()
    for index in range(LAUNCHES):
        with (
            launch(first_launch + index) as process,
            rivals(process, opened, case) as reference,
        ):
            candidate = CandidateArm(process, opened, case, watch)
            arms = [*reference, candidate]
            run_s = sum(warm(arm, calls) for arm in arms)
            if plan is None:
                plan = _plan(run_s, len(arms), case, calls, opened, budget_s, process.first_call_s)
                watched = _watched(plan, candidate.batch_s, opened) if watch is not None else set()
            compared = opened.rng.sample(range(plan.rounds), plan.checks)
            candidate.sample(dict.fromkeys(compared, plan.calls_checked))
            candidate.probe_before(_probe(plan, case, opened, process))
            candidate.order_looks = looks
            candidate.watch_before({number for at, number in watched if at == index})
            seeds = RoundSeeds(opened)
            for arm in arms:
                arm.begin(seeds)
            samples += run_rounds(
                arms, rounds=plan.rounds, launch=first_launch + index, rng=rng, iterations=calls
            )
            checked, looks = checked + candidate.checked, candidate.order_looks
            last = index + 1 == plan.launches
            if watch is not None and last:
                candidate.watch_until_enough(calls, watch)
            process.pause()
        if last:
            break
    assert plan is not None
    detail = f"{checked} calls were compared, at most {plan.calls_checked} of a batch of {calls}"
    if opened.variations(case):
        detail += "; batches with values of hidden cases came between them"
    if looks:
        detail += f"; at {looks} moments the calls of a batch were seen to come in their order"
    evidence.append(Evidence(check=f"right while timed on {name}", passed=True, detail=detail))
    numbered = [replace(sample, round=first_round + sample.round) for sample in samples]
    return CaseTiming(case=case, name=name, samples=numbered, checked=checked, order_looks=looks)


def time_alone(case: int, opened: OpenProblem) -> list[float]:
    """Seconds a call of the reference, of each batch, while no candidate could be in its way."""
    facts = opened.cases[case]
    calls = calls_per_batch(facts.time_s, facts.bytes, gpu=opened.accelerator is not None)
    arm = ReferenceArm(REFERENCE, opened, case, "copied")
    warm(arm, calls)
    return [arm.run(calls).wall_time_s / calls for _ in range(ALONE_BATCHES)]


def see_order(timing: CaseTiming, opened: OpenProblem, process: CandidateProcess) -> bool:
    """Whether a compiled kernel's calls were seen to come one after another; looks until so.

    Decided where they do not.
    """
    facts = opened.cases[timing.case]
    calls = calls_per_batch(facts.time_s, facts.bytes)
    candidate = CandidateArm(process, opened, timing.case)
    candidate.order_looks = timing.order_looks
    if calls > 1:
        warm(candidate, calls)
        candidate.probe_until_seen(calls, LEAST_LOOKS)
        process.pause()
    return calls == 1 or candidate.order_looks >= LEAST_LOOKS


def watch_case(case: int, opened: OpenProblem, process: CandidateProcess, watch: Watch) -> None:
    """Look at a case that is not timed, one call at a time."""
    candidate = CandidateArm(process, opened, case, watch)
    candidate.run(1)
    candidate.be_watched(1)
    candidate.watch_until_enough(1, watch)


def _watched(plan: _Plan, batch_s: float, opened: OpenProblem) -> set[tuple[int, int]]:
    """Launch and round of each batch that is looked at."""
    places = list(itertools.product(range(plan.launches), range(plan.rounds)))
    count = batches_to_watch(batch_s, len(opened.timed))
    return set(secrets.SystemRandom().sample(places, min(count, len(places))))


def _probe(
    plan: _Plan, case: int, opened: OpenProblem, process: CandidateProcess
) -> dict[int, int]:
    """Before which batch of a launch a probe comes, and how many of its calls are compared."""
    kinds = opened.variations(case)
    if not kinds and process.returns_outputs:
        return {}
    least = CHEAP_CHECKS if CHEAP_CHECKS * opened.check_time_s[case] < CHEAP_S else 1
    return {secrets.randbelow(plan.rounds): max(1, min(kinds, max(least, plan.calls_checked)))}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Launches, rounds of each, and how many of its batches are compared; fixed once made."""

    launches: int
    rounds: int
    checks: int
    calls_checked: int
    """Of each batch that is compared."""


def _plan(
    run_s: float,
    arms: int,
    case: int,
    calls: int,
    opened: OpenProblem,
    budget_s: float,
    first_call_s: float,
) -> _Plan:
    """What the time allows: the last warm batch of each of the arms tells what a round costs.

    Every launch after the first has its `first_call_s` again, in which a kernel may compile.
    A comparison (float64) may cost more than the rest of the round; then fewer batches have one.
    """
    check_s = opened.check_time_s[case]
    share = min(1.0, CHECK_SHARE * run_s / check_s) if check_s > 0 else 1.0
    probe_s = check_s + run_s / arms
    launch_s = MIN_ROUNDS * run_s + check_s + probe_s
    room_s = SHARE_OF_TIME * opened.clock.left_s / max(1, len(opened.timed))
    launches = min(LAUNCHES, int((room_s + first_call_s) / (launch_s + first_call_s)))
    if launches < MIN_LAUNCHES:
        least_s = MIN_LAUNCHES * (launch_s + first_call_s) - first_call_s
        raise NotTimed(
            f"timing takes {least_s / SHARE_OF_TIME:.0f} s or more, and the time limit of "
            f"{opened.clock.limit_s:.3g} s leaves {opened.clock.left_s:.0f} s; raise it"
        )
    rounds = round_count(run_s + share * check_s, budget_s)
    left_s = (room_s + first_call_s) / launches - first_call_s - rounds * run_s - probe_s
    fitting = int(left_s / check_s) if check_s > 0 else rounds
    checks = max(1, min(rounds, fitting, math.ceil(share * rounds)))
    more = int(MORE_SHARE * run_s / check_s) if check_s > 0 and checks == rounds else 1
    calls_checked = max(1, min(more, MOST_CHECKED, calls))
    return _Plan(
        launches=launches,
        rounds=rounds,
        checks=checks,
        calls_checked=calls_checked,
    )


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
