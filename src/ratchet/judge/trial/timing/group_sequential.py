"""Time one case in up to three looks, each only if the one before left the answer open.

This is a group-sequential test. Every look answers at LOOK_CONFIDENCE, so the chance of a false
answer over all looks is at most 5 % (`measure.plan.confidence_of`). Each look starts all arms anew,
because processes differ more than rounds. A look that could hardly prove the kernel faster is left
out: stopping early cannot cause a false answer. A time that this machine cannot reach is measured
once more before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.base.measure import Sample
from ratchet.base.measure.estimate import WIDEST, Comparison
from ratchet.base.measure.rounds import until_settled
from ratchet.judge.integrity.own_work import Watch
from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.timing.decide import SYSTEMATIC, compare_case, reachable
from ratchet.judge.trial.timing.plan import budgets_s
from ratchet.judge.trial.timing.sample import CaseTiming, Launch, time_case
from ratchet.judge.verdict import CandidateFault, Evidence

FUTILE: Final = (0.1, 0.2)
"""The next look narrows the interval to a third, the last to about half. `proven` needs SYSTEMATIC.
If the logarithm of a kernel's ratio exceeds that of SYSTEMATIC by less than this part of the half
width, the kernel would have to lie well over a standard error above its estimate."""


def time_until_answered(
    case: int, opened: OpenProblem, launch: Launch, watch: Watch | None
) -> CaseTiming:
    """Return the samples of one case, over as few looks as give an answer.

    Raises CandidateFault if an output is wrong while it is timed, or time ran out before enough was
    measured.
    """

    def take(budget_s: float, before: Sequence[Sample] = ()) -> CaseTiming:
        """Take one look, in new launches; numbers continue those of the looks before."""
        return time_case(
            case,
            opened,
            launch,
            watch,
            first_launch=1 + max((sample.launch for sample in before), default=-1),
            first_round=1 + max((sample.round for sample in before), default=-1),
            budget_s=budget_s,
        )

    timing, later_s = take(budgets_s()[0]), budgets_s()[1:]
    if watch is not None and watch.failed:
        watch.conclude(opened.evidence)
    unreachable = _unreachable(timing, opened)
    if unreachable:
        detail = f"too fast for this machine, so measured again: {unreachable}"
        opened.evidence.append(Evidence(check="physics", passed=False, detail=detail))
        timing = take(budgets_s()[-1])

    def settled(looks: int) -> bool:
        if looks == len(later_s):
            return True
        answer = compare_case(timing)
        return _answered(answer) or _futile(answer, FUTILE[looks])

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
        )
        return True

    until_settled(take_more, settled)
    if watch is None:
        return timing
    unseen = watch.conclude(opened.evidence)  # it sampled every launch, the later ones too
    return replace(timing, unseen=unseen)


def _unreachable(timing: CaseTiming, opened: OpenProblem) -> str:
    """Return the figures if the samples are faster than the machine can be, else ""."""
    try:
        passed, detail = reachable(timing, opened)
    except RatchetError:  # `conclude` reports that there are no ceilings
        return ""
    return detail if passed is False else ""


def _answered(found: Comparison) -> bool:
    """Return True if no further look is needed; `equivalent` counts only with a low floor."""
    if found.answer == "equivalent":
        return found.floor is not None and found.floor.high <= WIDEST
    return found.answer != "undecided"


def _futile(found: Comparison, share: float) -> bool:
    """Return True if more samples could hardly find the kernel faster."""
    half_width = math.log(found.high / found.low) / 2
    return math.log(found.ratio / SYSTEMATIC) < share * half_width
