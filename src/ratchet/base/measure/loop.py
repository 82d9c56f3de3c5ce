"""The measuring loop: looks, the launches before each look, the rounds of each launch.

A look answers from all samples so far, and settles the question or asks for more. A launch starts
every arm anew. A round (`rounds`) times every arm once. What is measured, and when it is settled,
is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from ratchet.base.measure.arm import Arm
from ratchet.base.measure.rounds import Enough, OnRound, run_rounds
from ratchet.base.measure.samples import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLaunch:
    """A launch whose arms are warm."""

    arms: Sequence[Arm]
    rounds: int
    """0 if there is no time for any."""
    iterations: int | Mapping[str, int] = 1
    """Iterations of a sample: one number, or one by the name of an arm."""
    on_round: OnRound | None = None


def run_launches(
    open_launch: Callable[[int], AbstractContextManager[OpenLaunch]],
    *,
    more: Callable[[int], bool],
    rng: np.random.Generator,
    first: int = 0,
    keep: Callable[[Sequence[Sample]], None] = lambda samples: None,
    enough: Enough = lambda: False,
) -> None:
    """Open one launch after another, and time its arms in rounds, while `more(launch)` is true.

    Launches are numbered from `first`. A launch opens with its arms started and warm, and `keep`
    gets its samples before it closes. Raises what `run_rounds` does.
    """
    launch = first
    while more(launch):
        with open_launch(launch) as opened:
            if opened.rounds:
                taken = run_rounds(
                    opened.arms,
                    rounds=opened.rounds,
                    launch=launch,
                    rng=rng,
                    iterations=opened.iterations,
                    on_round=opened.on_round,
                    enough=enough,
                )
                keep(taken)
        launch += 1


def until_settled(take: Callable[[int], bool], settled: Callable[[int], bool]) -> int:
    """Take looks until the question is settled; return their number.

    Both are called with the number of looks so far, `settled` before each. `take` measures what the
    next look adds, and returns False if there is no room for it. The level of each look must be
    that of a plan made before the first (`plan.confidence_of`): then stopping early, for whatever
    reason, makes no false answer likelier.
    """
    looks = 0
    while not settled(looks) and take(looks):
        looks += 1
    return looks
