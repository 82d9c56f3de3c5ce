"""Evolution: change the best schedules found so far, cross two of them, and draw some anew.

Parents win a tournament among the best (Goldberg and Deb, "A comparative analysis of selection
schemes used in genetic algorithms", 1991), so that a lucky time does not become the only parent.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from typing import Final

from ratchet.write.author import Schedule, Space
from ratchet.write.search.strategy import (
    ATTEMPTS,
    Move,
    ScoredSchedule,
    differences,
    is_valid,
    new_draws,
    ranked,
)

POPULATION: Final = 12
"""Best trials from which parents are chosen."""
TOURNAMENT: Final = 3
FEWEST: Final = 4
"""Right trials before there are parents."""
DRAWN, CROSSED = 0.15, 0.25
"""Shares of moves that are drawn at random, and that cross two parents."""
MORE_CHANGES: Final = 0.35
"""Chance of each further change to a child."""
PRIOR: Final = 1.0
"""Trials without any effect that are added to those of each value: one lucky time says little."""


class Evolution:
    """Makes children of the fastest schedules."""

    name = "evolution"

    def __init__(self, space: Space, source: random.Random) -> None:
        self._space = space
        self._source = source

    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return children that were not tried; see `SearchStrategy.ask`."""
        seen = {trial.schedule for trial in trials}
        parents = [trial.schedule for trial in ranked(trials)[:POPULATION]]
        draws = new_draws(self._space, seen, self._source)
        moves: list[Move] = []
        favourite = self._favourite(trials)
        if favourite is not None and favourite not in seen and is_valid(self._space, favourite):
            seen.add(favourite)
            note = f"the best of each choice: {differences(parents[0], favourite)}"
            moves.append(Move(schedule=favourite, parents=(parents[0],), note=note))
        while len(moves) < count:
            move = None
            if len(parents) >= FEWEST and self._source.random() >= DRAWN:
                move = self._child(parents, seen)
            if move is None:
                drawn = next(draws, None)
                if drawn is None:
                    break
                move = Move(schedule=drawn, note="drawn")
            seen.add(move.schedule)
            moves.append(move)
        return moves

    def _favourite(self, trials: Sequence[ScoredSchedule]) -> Schedule | None:
        """Return each choice's value with the best trials on average; None before there are any.

        The first trials of a space change one choice each, so this joins what helped alone.
        """
        right = ranked(trials)
        if len(right) < FEWEST:
            return None
        names = {name for name, _ in right[0].schedule}
        alike = [one for one in right if {name for name, _ in one.schedule} == names]
        middle = statistics.fmean(one.score or 0.0 for one in alike)
        gains: dict[tuple[str, str], list[float]] = {}
        for one in alike:
            for pair in one.schedule:
                gains.setdefault(pair, []).append((one.score or 0.0) - middle)
        best: dict[str, tuple[float, str]] = {}
        for (name, value), found in gains.items():
            effect = sum(found) / (len(found) + PRIOR)
            best[name] = max(best.get(name, (-math.inf, "")), (effect, value))
        return tuple(sorted((name, value) for name, (_, value) in best.items()))

    def _child(self, parents: Sequence[Schedule], seen: set[Schedule]) -> Move | None:
        """Return a child that is new; None if it takes too long to find one."""
        for _ in range(ATTEMPTS):
            first = self._winner(parents)
            crossed = self._source.random() < CROSSED
            move = self._cross(first, self._winner(parents)) if crossed else self._change(first)
            if move is not None and move.schedule not in seen:
                return move
        return None

    def _winner(self, parents: Sequence[Schedule]) -> Schedule:
        """Return the best of a few; `parents` are the best first."""
        return parents[min(self._source.randrange(len(parents)) for _ in range(TOURNAMENT))]

    def _change(self, parent: Schedule) -> Move:
        child = self._space.change(parent, self._source)
        for _ in itertools.takewhile(
            lambda _: self._source.random() < MORE_CHANGES, itertools.repeat(None, 3)
        ):
            child = self._space.change(child, self._source)
        return Move(schedule=child, parents=(parent,), note=differences(parent, child))

    def _cross(self, first: Schedule, second: Schedule) -> Move | None:
        """Return a mix of two parents with the same choices; None if the space has no such mix."""
        one, other = dict(first), dict(second)
        if one.keys() != other.keys() or one == other:
            return None
        mixed = {name: (one if self._source.random() < 0.5 else other)[name] for name in one}
        child = tuple(sorted(mixed.items()))
        if child in (first, second) or not is_valid(self._space, child):
            return None
        return Move(
            schedule=child, parents=(first, second), note=f"crossed: {differences(first, child)}"
        )
