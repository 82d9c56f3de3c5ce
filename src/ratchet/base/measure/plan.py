"""The plan of a comparison: how many launches and rounds, and when the samples are looked at.

The plan depends on the clock alone, never on which arm was faster. So it may be made after the
first launch has started, and its looks are still fixed in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FALSE_RATE = 0.01
"""Chance that a comparison of two equal arms answers `faster` or `slower`, over all looks."""
LOOKS = 3
MOST_LAUNCHES, LEAST_LAUNCHES = 32, 3
MOST_ROUNDS, LEAST_ROUNDS = 40, 6
LAUNCHES = {MOST_LAUNCHES: 20, 24: 20, 16: LEAST_ROUNDS, 12: LEAST_ROUNDS, 8: LEAST_ROUNDS}
LAUNCHES |= {6: LEAST_ROUNDS, 4: LEAST_ROUNDS, LEAST_LAUNCHES: LEAST_ROUNDS}
"""Numbers of launches, and the rounds that each of them must have. Launches differ more than rounds
do, but beyond 16 of them, starting them takes more than it tells unless they are long."""
FEWEST_PAIRS = 6
TARGET_BATCH_S = 0.02
"""A sample runs at least this long, so that the clock and the channel cost little of it."""
MOST_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class PairPlan:
    """Launches, rounds in each, and the numbers of launches after which an answer may be given."""

    launches: int
    rounds: int
    looks: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return self.launches * self.rounds


def make_plan(left_s: float, *, setup_s: float, round_s: float) -> PairPlan | None:
    """Plan as many launches as fit in `left_s`; None if not even six pairs fit.

    `setup_s` is what a launch costs before its first round, `round_s` one round of all arms.
    """
    for launches, least in LAUNCHES.items():
        rounds = even_rounds(left_s / launches - setup_s, round_s, most=MOST_ROUNDS)
        if rounds >= least:
            return _plan(launches, rounds)
    rounds = even_rounds(left_s / LEAST_LAUNCHES - setup_s, round_s, most=MOST_ROUNDS)
    return _plan(LEAST_LAUNCHES, rounds) if rounds * LEAST_LAUNCHES >= FEWEST_PAIRS else None


def confidence_of(false_rate: float, *, looks: int = 1, among: int = 1) -> float:
    """Return the confidence of each of several intervals that together err at a rate, at most.

    The rate is spent evenly on the looks, and on the answers of each look (`among`). The bound is
    Bonferroni's: it holds however they depend on each other (Jennison and Turnbull, "Group
    Sequential Methods", 2000, chapter 1).
    """
    return 1 - false_rate / looks / max(1, among)


def look_confidence(metrics: int) -> float:
    """Return the confidence of each interval, given the number of metrics that decide."""
    return confidence_of(FALSE_RATE, looks=LOOKS, among=metrics)


def even_rounds(seconds: float, round_s: float, *, most: int, fewest: int = 0) -> int:
    """Return how many rounds fit, an even number so that orders balance."""
    fitting = int(seconds / max(round_s, 1e-9))
    return max(fewest, min(most, fitting)) // 2 * 2


def batch_iterations(step_s: float) -> int:
    """Return the number of iterations of one sample."""
    return max(1, min(MOST_ITERATIONS, math.ceil(TARGET_BATCH_S / max(step_s, 1e-9))))


def least_budget_s(*, setup_s: float, round_s: float) -> float:
    """Return the time that the smallest plan needs."""
    return FEWEST_PAIRS * round_s + LEAST_LAUNCHES * setup_s


def _plan(launches: int, rounds: int) -> PairPlan:
    shares = (math.ceil(launches / 4), math.ceil(launches / 2), launches)
    looks = sorted({max(look, LEAST_LAUNCHES) for look in shares})
    return PairPlan(launches=launches, rounds=rounds, looks=tuple(looks))
