"""See that a Python kernel's gain remains when each call is alone in its batch.

All calls of a batch are revealed together, and a kernel in Python can reach the worker that makes
them: it could compute the next call's results in a thread while this one's are computed. A training
step would not see that gain. Nothing in one process can be hidden from a kernel in it, but a call
whose inputs come alone has no next one. So before `proven`, batches of one call are timed beside
the reference's, and half of the seconds saved must remain. If clearly fewer remain, only those
count. The round trip is in both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import sqrt
from statistics import geometric_mean, median
from typing import Final

from ratchet.base.measure.estimate import summarise
from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.timing.arms import CANDIDATE, CandidateArm, RoundSeeds, rivals, warm
from ratchet.judge.trial.timing.decide import faster_reference
from ratchet.judge.trial.timing.plan import calls_of
from ratchet.judge.trial.timing.sample import CaseTiming
from ratchet.judge.verdict import Evidence

KEPT_SHARE: Final = 0.5
CLEARLY: Final = 0.9
"""If less than this share of the seconds remains, only what remains counts."""
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_S = 8, 40, 3.0
"""Rounds end once the gain remains; a busy machine gets more of them, within these seconds."""


def see_alone(
    timings: Sequence[CaseTiming], opened: OpenProblem, process: CandidateProcess
) -> tuple[Evidence, float]:
    """Return the evidence that the gain remains call by call, and the share of the ratio that does.

    The evidence fails if it does not remain.
    """
    checked, shares, told = [], [], []
    for timing in timings:
        if calls_of(opened, timing.case) == 1:
            shares.append(1.0)
            continue
        together_s = _saved_s(timing)
        saved = _saved_alone_s(timing.case, opened, process, together_s)
        words = (
            f"on {timing.name} it saves {1e3 * together_s:.3g} ms a call where calls share a "
            f"batch, and {1e3 * median(saved):.3g} ms where each is alone"
        )
        checked.append(timing.name)
        if not remains(median(saved), together_s):
            return Evidence(check="one by one", passed=False, detail=words), 0.0
        shares.append(kept_share(_median_s(timing, faster_reference(timing)), together_s, saved))
        told += [words] if shares[-1] < 1 else []
    remaining = f"the gain remains where each call is alone: {', '.join(checked) or 'each is'}"
    detail = "; ".join(told) or remaining
    return Evidence(check="one by one", passed=True, detail=detail), geometric_mean(shares)


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


def _saved_s(timing: CaseTiming) -> float:
    """Return the seconds that the kernel saves per call of a timed batch."""
    return _median_s(timing, faster_reference(timing)) - _median_s(timing, CANDIDATE)


def _median_s(timing: CaseTiming, arm: str) -> float:
    return summarise(timing.samples, arm).median_s


def _saved_alone_s(
    case: int, opened: OpenProblem, process: CandidateProcess, together_s: float
) -> list[float]:
    """Return the seconds saved in each pair of batches of one call."""
    saved: list[float] = []
    candidate = CandidateArm(process, opened, case)
    with rivals(process, opened, case) as found:
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
