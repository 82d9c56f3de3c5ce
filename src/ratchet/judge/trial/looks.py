"""Time one case in up to three looks, each only if the one before left the answer open.

This is a group-sequential test. Every look answers at LOOK_CONFIDENCE, so the chance of a false
answer over all looks is at most 5 % (`measure.plan.confidence_of`). Each look starts all arms anew,
because processes differ more than rounds. A look that could hardly prove the kernel faster is left
out: stopping early cannot cause a false answer. A time that this machine cannot reach is measured
once more before it counts.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from statistics import geometric_mean, median
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.base.measure import WIDEST, Ratio, Sample
from ratchet.base.measure.rounds import until_settled
from ratchet.judge.integrity.census import DeviceCount, told_as
from ratchet.judge.integrity.own_work import Watch
from ratchet.judge.trial import open_problem
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, CandidateArm, RoundSeeds, rivals, warm
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.decide import (
    SYSTEMATIC,
    compare_case,
    faster_reference,
    median_s,
    own_error,
    reachable,
)
from ratchet.judge.trial.open_problem import OpenProblem, Rivalry
from ratchet.judge.trial.plan import budgets_s, calls_of
from ratchet.judge.trial.sample import CaseTiming, Launch, time_alone, time_case
from ratchet.judge.verdict import CandidateFault, Evidence, fault

FUTILE: Final = (0.1, 0.2)
"""The next look narrows the interval to a third, the last to about half. `proven` needs more than
`own_error`. If the logarithm of a kernel's ratio exceeds that of this error by less than this part
of the half width, the kernel would have to lie well over a standard error above its estimate."""


def time_until_answered(
    case: int, rivalry: Rivalry, launch: Launch, watch: Watch | None
) -> CaseTiming:
    """Return the samples of one case, over as few looks as give an answer.

    Raises CandidateFault if an output is wrong while it is timed, or time ran out before enough was
    measured.
    """

    def take(budget_s: float, before: Sequence[Sample] = ()) -> CaseTiming:
        """Take one look, in new launches; numbers continue those of the looks before."""
        return time_case(
            case,
            rivalry,
            launch,
            watch,
            first_launch=1 + max((sample.launch for sample in before), default=-1),
            first_round=1 + max((sample.round for sample in before), default=-1),
            budget_s=budget_s,
        )

    record = rivalry.record
    timing, later_s = take(budgets_s()[0]), budgets_s()[1:]
    if watch is not None and watch.failed:
        record.evidence.append(watch.evidence())
        watch.conclude()
    possible: bool | None = None
    with contextlib.suppress(RatchetError):  # `conclude` reports that there are no ceilings
        possible, figures = reachable(timing, rivalry.opened)
    if possible is False:
        detail = f"too fast for this machine, so measured again: {figures}"
        record.note("physics", detail, passed=False)
        timing = take(budgets_s()[-1])

    def settled(looks: int) -> bool:
        if looks == len(later_s):
            return True
        answer = compare_case(timing)
        return _answered(answer) or _futile(answer, FUTILE[looks], own_error(timing))

    def take_more(looks: int) -> bool:
        nonlocal timing
        try:
            more = take(later_s[looks], timing.samples)
        except CandidateFault as error:
            if error.decided.not_timed:
                return False
            raise
        timing = replace(
            more,
            samples=[*timing.samples, *more.samples],
            checked=timing.checked + more.checked,
            order_looks=timing.order_looks + more.order_looks,
            waited=max(timing.waited, more.waited),
        )
        return True

    until_settled(take_more, settled)
    if watch is None:
        return timing
    record.evidence.append(watch.evidence())  # it sampled every launch, the later ones too
    return replace(timing, unseen=watch.conclude())


def _answered(found: Ratio) -> bool:
    """Return True if no further look is needed; `equivalent` counts only with a low floor."""
    if found.answer == "equivalent":
        return found.floor is not None and found.floor.high <= WIDEST
    return found.answer != "undecided"


def _futile(found: Ratio, share: float, error: float) -> bool:
    """Return True if more samples could hardly find the kernel faster by more than the `error`."""
    half_width = math.log(found.high / found.low) / 2
    return math.log(found.ratio / error) < share * half_width


# See that a Python kernel's gain remains when each call is alone in its batch.
#
# All calls of a batch are revealed together, and a kernel in Python can reach the worker that
# makes them: it could compute the next call's results in a thread while this one's are computed. A
# training step would not see that gain. Nothing in one process can be hidden from a kernel in it,
# but a call whose inputs come alone has no next one. So before `proven`, batches of one call are
# timed beside the reference's, and half of the seconds saved must remain. If clearly fewer remain,
# only those count. The round trip is in both.

KEPT_SHARE: Final = 0.5
CLEARLY: Final = 0.9  # If less than this share of the seconds remains, only what remains counts
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_S = 8, 40, 3.0
"""Rounds end once the gain remains; a busy machine gets more of them, within these seconds."""


def see_alone(
    timings: Sequence[CaseTiming], rivalry: Rivalry, process: CandidateProcess
) -> tuple[float, str]:
    """Return the share of the ratio that remains call by call, 0 if the gain does not; and why."""
    checked, shares, told = [], [], []
    for timing in timings:
        if calls_of(rivalry, timing.case) == 1:
            shares.append(1.0)
            continue
        together_s = _saved_s(timing)
        saved = _saved_alone_s(timing.case, rivalry, process, together_s)
        words = (
            f"on {timing.name} it saves {1e3 * together_s:.3g} ms a call where calls share a "
            f"batch, and {1e3 * median(saved):.3g} ms where each is alone"
        )
        checked.append(timing.name)
        if not remains(median(saved), together_s):
            return 0.0, words
        shares.append(kept_share(median_s(timing, faster_reference(timing)), together_s, saved))
        told += [words] if shares[-1] < 1 else []
    remaining = f"the gain remains where each call is alone: {', '.join(checked) or 'each is'}"
    return geometric_mean(shares), "; ".join(told) or remaining


def _saved_s(timing: CaseTiming) -> float:
    """Return the seconds that a call saves where calls share a batch."""
    return median_s(timing, faster_reference(timing)) - median_s(timing, CANDIDATE)


def kept_share(reference_s: float, together_s: float, alone_s: Sequence[float]) -> float:
    """Return the share of a case's ratio that remains where calls are alone; 1 unless it is clear.

    It is clear if even an upper bound of the median of the seconds saved alone (97 %, from the
    order of the pairs) is below CLEARLY of those saved in a batch.
    """
    ordered, count = sorted(alone_s), len(alone_s)
    upper = ordered[min(count - 1, count // 2 + round(sqrt(count) - 0.5))]
    if upper >= CLEARLY * together_s:
        return 1.0
    return (reference_s - together_s) / (reference_s - median(alone_s))


def remains(alone_s: float, together_s: float) -> bool:
    """Return whether enough of the seconds saved in shared batches is saved by calls alone."""
    return alone_s >= KEPT_SHARE * together_s


def _saved_alone_s(
    case: int, rivalry: Rivalry, process: CandidateProcess, together_s: float
) -> list[float]:
    """Return the seconds saved in each pair of batches of one call."""
    saved: list[float] = []
    opened, candidate = rivalry.opened, CandidateArm(process, rivalry, case)
    with rivals(process, rivalry, case) as found:
        arms = (found[0], candidate)
        for arm in arms:
            arm.begin(RoundSeeds(opened, fresh=False))
            warm(arm, 1)
        seeds, began = RoundSeeds(opened), time.perf_counter()
        for arm in arms:
            arm.begin(seeds)
        while len(saved) < LEAST_ROUNDS or (
            not remains(median(saved), together_s)
            and len(saved) < MOST_ROUNDS
            and time.perf_counter() - began < ROUNDS_S
        ):
            theirs, own = (arm.run(1).wall_time_s for arm in arms)
            saved.append(theirs - own)
    process.pause()
    return saved


# Checks that only a GPU needs: the census of a batch, and its own clock beside the judge's.

CALLS = 6  # Calls of the batch that is counted


def count_on_device(candidate: CandidateProcess, opened: OpenProblem) -> DeviceCount:
    """Count what one untimed batch does. Raises CandidateFault."""
    index = (opened.timed or [0])[0]
    candidate.censuses = []

    def run(calls: int) -> None:
        with opened.draw(index, calls, writable_inputs=False) as batch:
            candidate.resume()
            candidate.prepare(batch.layout, batch.memories, batch.read)
            candidate.go(batch.memories, calls, limit_s=2 * opened.cases[index].limit_s(calls))

    opened.with_fewer_calls(CALLS, run)
    told, candidate.censuses = candidate.censuses[-1][1], None
    return told_as(DeviceCount, told)


def check_clocks(timings: Sequence[CaseTiming], rivalry: Rivalry, *, won: bool) -> None:
    """Raise `unmeasured` if the GPU's own clock, or the reference alone, contradicts a time.

    The reference is timed alone only if the kernel won. The kernel's processes are gone by now.
    """
    clock, doubts = rivalry.device_clock, []

    def note(found: Evidence, doubt: str) -> None:
        rivalry.record.evidence.append(found)
        doubts.append(doubt)

    rivalry.record.note("caches", rivalry.opened.flushes())
    for timing in timings:
        note(*clock.compare(timing.case, timing.name, candidate=CANDIDATE))
    for timing in timings if won and not any(doubts) else ():
        calls = min(one.iterations for one in timing.samples)
        reference_s, candidate_s = (median_s(timing, arm) for arm in (REFERENCE, CANDIDATE))
        saved_s = calls * (reference_s - candidate_s)
        note(*clock.exceeds_round_trip(timing.case, timing.name, saved_s))
        note(
            *open_problem.undisturbed(
                timing.name,
                alone=time_alone(timing.case, rivalry),
                beside_s=reference_s,
                candidate_s=candidate_s,
                least=SYSTEMATIC,
            )
        )
    if any(doubts):
        raise fault("unmeasured", f"right, but {next(filter(None, doubts))}")
