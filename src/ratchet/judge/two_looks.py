"""Timing one case: a short look that settles most kernels, and a long one for the rest.

Both looks answer at 97.5 %, so that the chance of a false answer over the two is at most 5 %
(Bonferroni). A time that this machine cannot reach is measured once more before it counts.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from ratchet.errors import MeasureError, RatchetError
from ratchet.judge import kernel_timing
from ratchet.judge.candidate_process import Decided
from ratchet.judge.kernel_checks import OpenProblem
from ratchet.judge.kernel_timing import CaseTiming, Launch, time_case
from ratchet.judge.own_work import Watch
from ratchet.judge.speed import compare_case, reachable
from ratchet.judge.verdict import Evidence


def time_until_answered(
    case: int, opened: OpenProblem, launch: Launch, evidence: list[Evidence], watch: Watch | None
) -> CaseTiming:
    """The samples of one case over both looks, or the first alone where it has an answer.

    Decided when an output is wrong while it is timed, or time ran out before enough was measured.
    """
    timing = _look(case, opened, launch, evidence, watch)
    if watch is not None and watch.failed:
        watch.conclude(evidence)
    timing = _with_what_it_leaves_open(timing, opened, launch, evidence, watch)
    if watch is not None:  # which saw a part of every launch, the later ones too
        watch.conclude(evidence)
    return timing


def _with_what_it_leaves_open(
    timing: CaseTiming,
    opened: OpenProblem,
    launch: Launch,
    evidence: list[Evidence],
    watch: Watch | None,
) -> CaseTiming:
    with contextlib.suppress(RatchetError):  # `conclude` says that there are no ceilings
        passed, detail = reachable(timing, opened)
        if not passed:
            detail = f"too fast for this machine, so measured again: {detail}"
            evidence.append(Evidence(check="physics", passed=False, detail=detail))
            timing = _look(timing.case, opened, launch, evidence, watch)
    if kernel_timing.LOOKS < 2 or compare_case(timing).answer != "undecided":
        return timing
    return _with_second_look(timing, opened, launch, evidence, watch)


def _with_second_look(
    first: CaseTiming,
    opened: OpenProblem,
    launch: Launch,
    evidence: list[Evidence],
    watch: Watch | None,
) -> CaseTiming:
    try:
        second = _look(first.case, opened, launch, evidence, watch, again=True)
    except Decided as decided:
        if decided.status != "unmeasured":
            raise
        return first  # there is no time for it
    return replace(
        second,
        samples=[*first.samples, *second.samples],
        checked=first.checked + second.checked,
    )


def _look(
    case: int,
    opened: OpenProblem,
    launch: Launch,
    evidence: list[Evidence],
    watch: Watch | None,
    *,
    again: bool = False,
) -> CaseTiming:
    try:
        return time_case(
            case,
            opened,
            launch,
            evidence,
            watch,
            first_launch=kernel_timing.LAUNCHES if again else 0,
            budget_s=kernel_timing.LONG_BUDGET_S if again else kernel_timing.BUDGET_S,
        )
    except MeasureError as error:
        raise Decided("unmeasured", f"the samples carry no answer: {error}") from error
