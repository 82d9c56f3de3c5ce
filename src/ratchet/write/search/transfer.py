"""Use earlier runs for a new problem: their best schedules, and a cost model of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ratchet.write.author import Schedule, Space
from ratchet.write.search.cost_model import CostModel, Example
from ratchet.write.search.strategy import Move, is_valid

BEST_OF_EACH: Final = 2
"""Schedules that are taken from each earlier problem."""
MOST: Final = 8
"""Schedules of earlier problems that are tried first."""
LOOKED_AT: Final = 60
"""Schedules of other problems that are tried on a space, the newest."""
SLOWER: Final = 0.5
"""A schedule of another problem that is predicted to be slower than the space's own first choice by
more than this, in the logarithm of the time, is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A schedule that an earlier run timed."""

    problem: str
    """The problem's hash."""
    kernel: str
    schedule: Schedule
    features: tuple[float, ...]
    time_s: float
    right: bool


@dataclass(frozen=True, slots=True)
class Experience:
    """Everything that earlier runs on this device timed."""

    earlier: Sequence[Earlier] = field(default_factory=tuple)

    def examples(self) -> list[Example]:
        """Return them as a cost model takes them."""
        return [
            Example(problem=one.problem, features=one.features, time_s=one.time_s)
            for one in self.earlier
            if one.right
        ]

    def openers(self, space: Space, problem: str, model: CostModel | None) -> list[Move]:
        """Return what to try first on a problem: a similar problem's best, then the space's own.

        With a model, those of other problems are sorted by their predicted times, and left out if
        they are predicted much slower than what the space proposes itself.
        """
        own = [Move(schedule=one, note="the space's first choices") for one in space.first()]
        same = [one for one in self._best() if one.problem == problem]
        found = [_moved(one, "the best of an earlier run on this problem") for one in same]
        near = self._nearest(space, problem, model, own)
        found += [_moved(one, "the best on a similar problem") for one in near]
        valid = [move for move in found if is_valid(space, move.schedule)]
        unique: dict[Schedule, Move] = {}
        for move in [*valid[:MOST], *own]:
            unique.setdefault(move.schedule, move)
        return list(unique.values())

    def _best(self) -> list[Earlier]:
        """Return the fastest schedules of each problem."""
        by_problem: dict[str, dict[Schedule, Earlier]] = {}
        for one in self.earlier:
            if one.right:
                by_problem.setdefault(one.problem, {})[one.schedule] = one
        return [
            one
            for kept in by_problem.values()
            for one in sorted(kept.values(), key=lambda one: one.time_s)[:BEST_OF_EACH]
        ]

    def _nearest(
        self, space: Space, problem: str, model: CostModel | None, own: Sequence[Move]
    ) -> list[Earlier]:
        """Return the best of other problems, by prediction, or by distance without a model."""
        others = [one for one in self._best() if one.problem != problem][-LOOKED_AT:]
        others = [one for one in others if is_valid(space, one.schedule)]
        if not others:
            return []
        features = [space.features(one.schedule) for one in others]
        if model is None:
            far = {
                id(one): _distance(one.features, here)
                for one, here in zip(others, features, strict=True)
            }
            return sorted(others, key=lambda one: far[id(one)])
        times = [float(value) for value in model.predict(features)]
        limit = math.inf
        if own:
            first = model.predict([space.features(move.schedule) for move in own])
            limit = float(min(first)) + SLOWER
        order = sorted(range(len(others)), key=lambda index: times[index])
        return [others[index] for index in order if times[index] <= limit]


def _moved(one: Earlier, note: str) -> Move:
    return Move(schedule=one.schedule, note=note)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how far two problems' features lie apart; infinite if they are of different kinds."""
    return math.dist(one, other) if len(one) == len(other) else math.inf
