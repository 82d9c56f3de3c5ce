"""Run arms in adjacent, order-randomised rounds, launch by launch and look by look.

A look answers from all samples so far, and settles the question or asks for more. A launch starts
every arm anew. A round times every arm once. What is measured, and when it is settled, is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import Arm, ArmLeft, Sample, checked

OnRound = Callable[[int, Sequence[Sample]], None]
Enough = Callable[[], bool]
Leave = Callable[[int, Sequence[Sample]], Collection[str]]
"""Returns the names of arms that leave before a round, by its index and all samples so far."""
FEWEST_ROUNDS = 5  # These are run whatever the time


def run_rounds(
    arms: Sequence[Arm],
    *,
    rounds: int,
    launch: int,
    rng: np.random.Generator,
    iterations: int | Mapping[str, int] = 1,
    on_round: OnRound | None = None,
    enough: Enough = lambda: False,
    leave: Leave = lambda index, samples: (),
    fewest_arms: int = 2,
) -> list[Sample]:
    """Time every arm once per round, right after each other; return rounds x arms samples.

    After FEWEST_ROUNDS no two rounds begin once `enough()` is true: it may look at a clock, and
    must not look at the samples.

    Rounds come in twos: a random order, then its reverse (ABBA or BAAB for two arms), so that
    neither a steady drift nor the cost of running second falls on one arm. `iterations` is one
    number, or one per arm name. Each round ends with `on_round(round, samples of that round)`.

    An arm leaves for good if it raises ArmLeft, or if `leave` names it. Fewer than `fewest_arms`
    end the rounds: with 1, an arm may be timed alone.

    MeasureError for fewer arms, repeated names, or a time that is not positive.
    """
    _check(arms, rounds, fewest_arms)
    samples: list[Sample] = []
    racing = {arm.name for arm in arms}
    for index, order in enumerate(orders(len(arms), rounds=rounds, rng=rng)):
        if index >= FEWEST_ROUNDS and index % 2 == 0 and enough():
            break
        racing -= set(leave(index, samples))
        if len(racing) < fewest_arms:
            break
        current: list[Sample] = []
        for arm in (arms[place] for place in order):
            if arm.name not in racing:
                continue
            try:
                current.append(_time(arm, launch, index, len(current), iterations))
            except ArmLeft:
                racing.remove(arm.name)
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
    timing = arm.run(count)
    return checked(
        Sample(
            arm=arm.name,
            launch=launch,
            round=index,
            position=position,
            iterations=count,
            wall_time_s=timing.wall_time_s / count,
            cpu_time_s=timing.cpu_time_s / count,
        )
    )


def _check(arms: Sequence[Arm], rounds: int, fewest_arms: int) -> None:
    names = [arm.name for arm in arms]
    if len(names) < fewest_arms:
        raise MeasureError(f"got {len(names)} arms: give two or more to a paired run")
    if len(set(names)) != len(names):
        raise MeasureError(f"arms {names} share a name: give every arm a name of its own")
    if rounds < 1:
        raise MeasureError(f"got {rounds} rounds: ask for at least one")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLaunch:
    arms: Sequence[Arm]
    rounds: int  # 0 if there is no time for any
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
