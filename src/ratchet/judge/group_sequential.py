"""Timing one case in up to three looks, each at what the one before left undecided.

A group-sequential test: every look answers at LOOK_CONFIDENCE, so that the chance of a false answer
over all of them is at most 5 % (Bonferroni; Jennison and Turnbull, "Group Sequential Methods",
2000, chapter 1). Each look starts all arms anew, for starts differ more than rounds do. A look is
left out where it could hardly prove the kernel faster: to end without an answer makes none false. A
time that this machine cannot reach is measured once more before it counts.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Final

from ratchet.errors import MeasureError, RatchetError
from ratchet.judge import kernel_timing
from ratchet.judge.candidate_process import NotTimed
from ratchet.judge.kernel_checks import OpenProblem
from ratchet.judge.kernel_timing import CaseTiming, Launch, time_case
from ratchet.judge.own_work import Watch
from ratchet.judge.speed import compare_case, reachable
from ratchet.judge.verdict import Evidence
from ratchet.measure.estimate import Comparison

FUTILE: Final = (0.1, 0.2)
"""The next look narrows the interval to a third, the last to about half. A kernel whose logarithm
of the ratio is less than this part of the half width would then have to lie well over a standard
error above its estimate to be proven."""

LOW_FLOOR: Final = 1.1
"""An A/A floor over this hides more than a small difference: the next look may lower it."""


def time_until_answered(
    case: int, opened: OpenProblem, launch: Launch, evidence: list[Evidence], watch: Watch | None
) -> CaseTiming:
    """The samples of one case over its looks, as few as have an answer.

    Decided when an output is wrong while it is timed, or time ran out before enough was measured.
    """
    looks = _Looks(case, opened, launch, evidence, watch)
    timing = looks.take(_budgets_s()[0], None)
    if watch is not None and watch.failed:
        watch.conclude(evidence)
    timing = looks.again_if_unreachable(timing)
    timing = looks.until_answered(timing)
    # The watch saw a part of every launch, the later ones too.
    return timing if watch is None else replace(timing, unseen=watch.conclude(evidence))


def _budgets_s() -> tuple[float, ...]:
    """How long each look takes."""
    budgets_s = kernel_timing.SHORT_BUDGET_S, kernel_timing.BUDGET_S, kernel_timing.LONG_BUDGET_S
    return budgets_s[: kernel_timing.LOOKS]


class _Looks:
    """The looks at one case."""

    def __init__(
        self,
        case: int,
        opened: OpenProblem,
        launch: Launch,
        evidence: list[Evidence],
        watch: Watch | None,
    ) -> None:
        self._case = case
        self._opened = opened
        self._launch = launch
        self._evidence = evidence
        self._watch = watch

    def until_answered(self, timing: CaseTiming) -> CaseTiming:
        """The samples with those of every further look that is needed and pays."""
        for budget_s, share in zip(_budgets_s()[1:], FUTILE, strict=False):
            found = compare_case(timing)
            if _answered(found) or _futile(found, share):
                break
            try:
                more = self.take(budget_s, timing)
            except NotTimed:
                break
            timing = replace(
                more,
                samples=[*timing.samples, *more.samples],
                checked=timing.checked + more.checked,
                order_looks=timing.order_looks + more.order_looks,
            )
        return timing

    def again_if_unreachable(self, timing: CaseTiming) -> CaseTiming:
        """The samples, or others in their place where they say more than the machine can do."""
        with contextlib.suppress(RatchetError):  # `conclude` says that there are no ceilings
            passed, detail = reachable(timing, self._opened)
            if passed is False:
                detail = f"too fast for this machine, so measured again: {detail}"
                self._evidence.append(Evidence(check="physics", passed=False, detail=detail))
                return self.take(_budgets_s()[-1], None)
        return timing

    def take(self, budget_s: float, before: CaseTiming | None) -> CaseTiming:
        """The samples of one look alone, in launches of its own, numbered on from those before."""
        samples = [] if before is None else before.samples
        try:
            return time_case(
                self._case,
                self._opened,
                self._launch,
                self._evidence,
                self._watch,
                first_launch=1 + max((sample.launch for sample in samples), default=-1),
                first_round=1 + max((sample.round for sample in samples), default=-1),
                budget_s=budget_s,
            )
        except MeasureError as error:
            raise NotTimed(f"the samples carry no answer: {error}") from error


def _answered(found: Comparison) -> bool:
    """Whether no further look is needed; as fast as the reference only where the floor is low."""
    if found.answer == "equivalent":
        return found.floor is not None and found.floor.high <= LOW_FLOOR
    return found.answer != "undecided"


def _futile(found: Comparison, share: float) -> bool:
    """Whether more samples would hardly find the kernel faster: by how far it is, in half widths
    of the interval."""
    half_width = math.log(found.high / found.low) / 2
    return math.log(found.ratio) < share * half_width
