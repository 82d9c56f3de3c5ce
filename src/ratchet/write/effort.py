"""The effort spent on each kernel: screenings, verdicts, and when to stop."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Final

from ratchet.base.devices.ceilings import Ceilings
from ratchet.judge.abi import ITEM_BYTES
from ratchet.judge.problems.problem import Case, Problem

# Successive halving. Every screening of a kernel is a few more pairs, in processes of its own. As
# soon as a rung has ETA kernels, the best of them may climb to the next one, where they are
# screened again (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020):
# nobody waits for a rung to be full.
#
# A kernel's score is not the mean of its screenings: the best of many such means was mostly lucky.
# It is what to expect of the kernel given all screenings of the run (empirical Bayes; Efron and
# Morris, "Data analysis using Stein's estimator", JASA 1975): the mean, drawn towards that of the
# kernels close to the best, by as much as repeated screenings of one kernel scatter in comparison
# with kernels. A kernel that there was a reason to begin with is expected to be one spread better.
ETA: Final = 4
RUNGS: Final = 4  # A kernel is screened this often at most; a verdict follows
CLOSE: Final = 0.4
"""Log ratio below the best within which kernels are alike enough to tell what to expect of one."""
SCATTER, SCATTER_COUNTS = 0.1, 4.0
"""Standard deviation of one screening before any was repeated, and the repetitions it counts as."""
OUTLIER: Final = 3 * SCATTER
LEAST_SPREAD: Final = 0.02  # Least standard deviation that kernels are taken to have


@dataclass(slots=True)
class Rungs:
    """The screened kernels of one run, by how often they were screened."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    """Kernel hash to the log ratio of each of its screenings; only right kernels."""
    openers: set[str] = field(default_factory=set)  # Kernels that a search began with

    def record(self, kernel_hash: str, score: float | None, *, opener: bool = False) -> None:
        """Note one screening; None takes a kernel out, since it was found wrong."""
        if score is None:
            self.scores.pop(kernel_hash, None)
            return
        self.scores.setdefault(kernel_hash, []).append(score)
        if opener:
            self.openers.add(kernel_hash)

    def expected(self) -> dict[str, float]:
        """Return the log ratio to expect of each right kernel."""
        means = {one: sum(own) / len(own) for one, own in self.scores.items()}
        if not means:
            return {}
        noise, least = self._scatter(), max(means.values()) - CLOSE
        close = [one for one, mean in means.items() if mean > least]
        centre = sum(means[one] for one in close) / len(close)
        between = sum((means[one] - centre) ** 2 for one in close) / max(1, len(close) - 1)
        lucky = noise * sum(1 / len(self.scores[one]) for one in close) / len(close)
        spread = max(between - lucky, LEAST_SPREAD**2)
        found = dict(means)
        for one in close:
            before = centre + (math.sqrt(spread) if one in self.openers else 0.0)
            count = len(self.scores[one])
            found[one] = before + (means[one] - before) * count / (count + noise / spread)
        return found

    def _scatter(self) -> float:
        """Return the variance of one screening; a stall counts as no more than OUTLIER."""
        squares = 0.0
        for own in (one for one in self.scores.values() if len(one) > 1):
            middle = statistics.median(own)
            squares += sum(min(abs(x - middle), OUTLIER) ** 2 for x in own)
        repeated = sum(len(own) - 1 for own in self.scores.values())
        return (squares + SCATTER_COUNTS * SCATTER**2) / (repeated + SCATTER_COUNTS)

    def climbing(self) -> list[tuple[str, int]]:
        """Return the kernels that may climb now with the rung they climb to, the highest first."""
        found, expected = [], self.expected()
        for rung in reversed(range(1, RUNGS)):
            here = [one for one, own in self.scores.items() if len(own) >= rung]
            best = sorted(here, key=expected.__getitem__, reverse=True)[: len(here) // ETA]
            found += [(one, rung) for one in best if len(self.scores[one]) == rung]
        return found

    def order(self) -> list[str]:
        """Return every right kernel, the most promising first."""
        expected = self.expected()
        return sorted(expected, key=expected.__getitem__, reverse=True)


# Verdicts. The best of N screened kernels looks faster than it is: the screening chose it for its
# luck too (the winner's curse). So no screened ratio is ever reported as a result: the chosen
# kernel is timed anew by a verdict of its own, with new processes and values. Given the choice,
# none of the samples that chose it counts, so the verdict errs as often as it says, however many
# were screened.
#
# What has to be paid for is looking at more than one verdict. The budget fixes how many may count
# before the search begins; if that is m, each is given at the level that m verdicts together may
# err by (Bonferroni: `KernelJudge.judge(among=m)`). A kernel that turns out wrong, or crashes, is
# never timed and so cannot be falsely proven: the next one takes its place at no price.

PLAN: Final = ((180.0, 1), (900.0, 2))  # Budgets in seconds below which so many verdicts may count
MOST: Final = 3
VERDICT_S: Final = 20.0  # Time that is kept for each planned verdict
COMPILE_S: Final = 20.0  # The same, for torch.compile of the reference beside it
LARGEST_SHARE: Final = 0.5  # Largest share of the budget that is kept for verdicts


def planned_verdicts(budget_s: float) -> int:
    """Return how many verdicts with a time may be taken at the end of a search."""
    return next((count for limit_s, count in PLAN if budget_s < limit_s), MOST)


def kept_s(budget_s: float, *, against_compile: bool = False) -> float:
    """Return how much of a budget is kept for the verdicts, in seconds."""
    each_s = VERDICT_S + (COMPILE_S if against_compile else 0.0)
    return min(planned_verdicts(budget_s) * each_s, LARGEST_SHARE * budget_s)


# The floor is the roofline of rates that were measured here: operations over the fastest rate, and
# the bytes of inputs and outputs over the bandwidth of the cache level that they fit in. The
# judge's own floor (`judge.trial.decide.least_time_s`) is a quarter of it: it must blame no kernel
# that is honest.

NEAR: Final = 1.15
"""A kernel that takes at most this many times the floor leaves nothing worth a search."""


def floor_s(problem: Problem, ceilings: Ceilings) -> float | None:
    """Return the geometric mean of the floors of the timed cases in seconds; None if unknown.

    Only inputs are counted for a problem of a file: what it puts out is known only after running
    it, which only the judge may do. That floor is too low, and never stops a search too early.
    """
    floors = [_floor_s(problem, case, ceilings) for case in problem.cases if case.timed]
    if not floors or min(floors) <= 0:
        return None
    return math.exp(math.fsum(map(math.log, floors)) / len(floors))


def _floor_s(problem: Problem, case: Case, ceilings: Ceilings) -> float:
    moved = sum(
        math.prod(spec.shape) * ITEM_BYTES[spec.dtype] * (2 if spec.in_place else 1)
        for spec in case.inputs
        if spec.layout != "broadcast"
    )
    flops = 0.0
    if not problem.text and problem.model is None:
        put_out, flops = _outputs_and_flops(problem, case)
        moved += put_out
    return ceilings.bound_s(flops, moved)


def _outputs_and_flops(problem: Problem, case: Case) -> tuple[int, float]:
    """Return bytes of the new outputs and operations of a call, from a run without values."""
    import torch

    from ratchet.judge.problems.inputs import dtype_named
    from ratchet.judge.problems.references import FlopCount

    given = [
        torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device="meta")
        for spec in case.inputs
    ]
    counted = FlopCount()
    try:
        with torch.no_grad(), counted:
            found = problem.load_reference()(*given, case.scalars)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0, 0.0  # the reference reads values
    new = found[sum(spec.in_place for spec in case.inputs) :]
    return sum(one.numel() * one.element_size() for one in new), counted.total
