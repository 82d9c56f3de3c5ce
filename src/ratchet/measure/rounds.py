"""Run arms against each other in adjacent, order-randomised rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.measure.arm import Arm, Timing
from ratchet.measure.samples import Sample, checked

OnRound = Callable[[int, Sequence[Sample]], None]
Enough = Callable[[], bool]
FEWEST_ROUNDS = 5
"""These are run whatever the time."""


def run_rounds(
    arms: Sequence[Arm],
    *,
    rounds: int,
    launch: int,
    rng: np.random.Generator,
    iterations: int | Mapping[str, int] = 1,
    on_round: OnRound | None = None,
    enough: Enough = lambda: False,
) -> list[Sample]:
    """Time every arm once per round, right after each other; return rounds x arms samples.

    After FEWEST_ROUNDS no two rounds begin once `enough()` is true: it may look at a clock, and
    must not look at the samples.

    Rounds come in twos: a random order, then its reverse (ABBA or BAAB for two arms), so that
    neither a steady drift nor the cost of running second falls on one arm. `iterations` is one
    number, or one per arm name. Each round ends with `on_round(round, samples of that round)`.
    MeasureError for fewer than two arms, repeated names, or a time that is not positive.
    """
    _check(arms, rounds)
    samples: list[Sample] = []
    for index, order in enumerate(orders(len(arms), rounds=rounds, rng=rng)):
        if index >= FEWEST_ROUNDS and index % 2 == 0 and enough():
            break
        current = [
            _time(arms[arm], launch, index, position, iterations)
            for position, arm in enumerate(order)
        ]
        samples.extend(current)
        if on_round is not None:
            on_round(index, current)
    return samples


def orders(arms: int, *, rounds: int, rng: np.random.Generator) -> list[list[int]]:
    """Yield the arms' order for each round: a random one, then its reverse."""
    result: list[list[int]] = []
    while len(result) < rounds:
        order = [int(arm) for arm in rng.permutation(arms)]
        result += [order, order[::-1]]
    return result[:rounds]


def _time(
    arm: Arm, launch: int, index: int, position: int, iterations: int | Mapping[str, int]
) -> Sample:
    count = iterations if isinstance(iterations, int) else iterations[arm.name]
    return timed_sample(
        arm.run(count),
        arm=arm.name,
        launch=launch,
        round=index,
        position=position,
        iterations=count,
    )


def timed_sample(
    timing: Timing, *, arm: str, launch: int, round: int, position: int, iterations: int
) -> Sample:
    """Return the sample of a batch."""
    return checked(
        Sample(
            arm=arm,
            launch=launch,
            round=round,
            position=position,
            iterations=iterations,
            wall_time_s=timing.wall_time_s / iterations,
            cpu_time_s=timing.cpu_time_s / iterations,
        )
    )


def _check(arms: Sequence[Arm], rounds: int) -> None:
    names = [arm.name for arm in arms]
    if len(names) < 2:
        raise MeasureError(f"got {len(names)} arms: give two or more to a paired run")
    if len(set(names)) != len(names):
        raise MeasureError(f"arms {names} share a name: give every arm a name of its own")
    if rounds < 1:
        raise MeasureError(f"got {rounds} rounds: ask for at least one")
