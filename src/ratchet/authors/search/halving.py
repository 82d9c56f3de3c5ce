"""Successive halving: the better a kernel looks, the more pairs it is timed in.

Every screening of a kernel is a few more pairs, in processes of its own. As soon as a rung has ETA
kernels, the best of them may climb to the next one, where they are screened again (Li et al., "A
System for Massively Parallel Hyperparameter Tuning", MLSys 2020): nobody waits for a rung to be
full. A kernel's score is the mean over all of its screenings: those who climbed by luck fall back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ETA: Final = 4
RUNGS: Final = 4
"""A kernel is screened this often at most; a verdict follows."""


@dataclass(slots=True)
class Rungs:
    """The screened kernels of one run, by how often they were screened."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    """Kernel hash to the log ratio of each of its screenings; only right kernels."""

    def record(self, kernel_hash: str, score: float | None) -> None:
        """Note one screening; None takes a kernel out, since it was found wrong."""
        if score is None:
            self.scores.pop(kernel_hash, None)
            return
        self.scores.setdefault(kernel_hash, []).append(score)

    def score(self, kernel_hash: str) -> float:
        """Return the mean log ratio over a kernel's screenings."""
        own = self.scores[kernel_hash]
        return sum(own) / len(own)

    def climbing(self) -> list[tuple[str, int]]:
        """Return the kernels that may climb now with the rung they climb to, the highest first."""
        found = []
        for rung in reversed(range(1, RUNGS)):
            here = [one for one, own in self.scores.items() if len(own) >= rung]
            best = sorted(here, key=self.score, reverse=True)[: len(here) // ETA]
            found += [(one, rung) for one in best if len(self.scores[one]) == rung]
        return found

    def order(self) -> list[str]:
        """Return every right kernel, the most promising first.

        Among those that were screened at least half as often as the one screened most: the others'
        scores are mostly luck. They follow.
        """
        most = max(map(len, self.scores.values()), default=0)
        return sorted(
            self.scores,
            key=lambda one: (2 * len(self.scores[one]) >= most, self.score(one)),
            reverse=True,
        )
