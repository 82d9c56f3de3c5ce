"""Successive halving: the better a kernel looks, the more pairs it is timed in.

Every screening of a kernel is a few more pairs, in processes of its own. As soon as a rung has ETA
kernels, the best of them may climb to the next one, where they are screened again (Li et al., "A
System for Massively Parallel Hyperparameter Tuning", MLSys 2020): nobody waits for a rung to be
full.

A kernel's score is not the mean of its screenings: the best of many such means was mostly lucky.
It is what to expect of the kernel given all screenings of the run (empirical Bayes; Efron and
Morris, "Data analysis using Stein's estimator", JASA 1975): the mean, drawn towards that of the
kernels close to the best, by as much as repeated screenings of one kernel scatter in comparison
with kernels. A kernel that there was a reason to begin with is expected to be one spread better.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Final

ETA: Final = 4
RUNGS: Final = 4
"""A kernel is screened this often at most; a verdict follows."""
CLOSE: Final = 0.4
"""Log ratio below the best within which kernels are alike enough to tell what to expect of one."""
SCATTER, SCATTER_COUNTS = 0.1, 4.0
"""Standard deviation of one screening before any was repeated, and the repetitions it counts as."""
OUTLIER: Final = 3 * SCATTER
LEAST_SPREAD: Final = 0.02
"""Least standard deviation that kernels are taken to have."""


@dataclass(slots=True)
class Rungs:
    """The screened kernels of one run, by how often they were screened."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    """Kernel hash to the log ratio of each of its screenings; only right kernels."""
    openers: set[str] = field(default_factory=set)
    """Kernels that a search began with."""

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
        noise = self._scatter()
        close = [one for one, mean in means.items() if mean > max(means.values()) - CLOSE]
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
        for own in self.scores.values():
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
