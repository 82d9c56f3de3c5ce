"""The author that searches a space of schedules: openers first, then moves of a strategy."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.write.author import FAILED, RIGHT, Answer, Progress, Proposal, Schedule, Space
from ratchet.write.search.cost_model import CostModel, Example
from ratchet.write.search.evolution import Evolution
from ratchet.write.search.halving import Rungs
from ratchet.write.search.strategy import (
    Move,
    ScoredSchedule,
    SearchStrategy,
    is_valid,
    new_draws,
)
from ratchet.write.search.transfer import Experience


class RandomSearch:
    """Draws every schedule alike."""

    name = "random"

    def __init__(self, space: Space, source: random.Random) -> None:
        self._space = space
        self._source = source

    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return schedules that were not tried; see `SearchStrategy.ask`."""
        seen = {trial.schedule for trial in trials}
        draws = new_draws(self._space, seen, self._source)
        return [Move(schedule=one, note="drawn") for one in itertools.islice(draws, count)]


def _optuna(space: Space, source: random.Random) -> SearchStrategy:
    from ratchet.write.search.optuna_search import OptunaSearch

    return OptunaSearch(space, source)


STRATEGIES: Final[Mapping[str, Callable[[Space, random.Random], SearchStrategy]]] = {
    "evolution": Evolution,
    "optuna": _optuna,
    "random": RandomSearch,
}
OVERSAMPLED: Final = 4
"""Moves that the cost model chooses from, for each one that is proposed."""
UNMODELLED: Final = 0.25
"""Share of moves that the cost model has no say in."""


class SearchAuthor:
    """Proposes the kernels of a space.

    `random` is a baseline: it uses neither openers nor earlier runs nor a cost model.
    """

    def __init__(
        self,
        space: Space,
        *,
        strategy: str = "evolution",
        seed: int = 0,
        experience: Experience | None = None,
        name: str = "search",
    ) -> None:
        self.name = name
        self._space = space
        self._source = random.Random(seed)
        self._strategy = STRATEGIES[strategy](space, self._source)
        self._plain = strategy == "random"
        self._experience = experience or Experience()
        self._openers: list[Move] | None = None
        self._asked: set[Schedule] = set()
        self._others: dict[str, bool] = {}
        """Kernels of other authors, and whether their schedules are of this space."""

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` proposals; see `Author.propose`."""
        answers = [one for one in progress.answers if self._is_own(one)]
        trials = self._trials(answers)
        hashes = {one.schedule: one.kernel_hash for one in answers}
        model = None if self._plain else self._model(progress.problem.hash, answers)
        if self._openers is None:
            self._openers = self._first(progress.problem.hash, model)
        known = {trial.schedule for trial in trials}
        proposals: list[Proposal] = []
        while self._openers and len(proposals) < count:
            move = self._openers.pop(0)
            if move.schedule not in known:
                reasoned = move.schedule not in self._space.first()[1:]
                proposals += self._proposed([move], hashes, opener=reasoned)
        left = count - len(proposals)
        if left > 0:
            tried = [*trials, *(ScoredSchedule(schedule=p.schedule, score=None) for p in proposals)]
            more = 1 if model is None else OVERSAMPLED
            moves = self._chosen(self._strategy.ask(tried, left * more), left, model)
            proposals += self._proposed(moves, hashes)
        return proposals

    def _is_own(self, proposal: Proposal) -> bool:
        """Return whether a proposal is of this space: a trained policy's may be too."""
        if proposal.author == self.name or not proposal.schedule:
            return proposal.author == self.name
        key = proposal.kernel.hash
        if key not in self._others:
            self._others[key] = is_valid(self._space, proposal.schedule)
        return self._others[key]

    def _first(self, problem: str, model: CostModel | None) -> list[Move]:
        return [] if self._plain else self._experience.openers(self._space, problem, model)

    def _trials(self, answers: Sequence[Answer]) -> list[ScoredSchedule]:
        """Return every schedule that was proposed, with the score to expect of it."""
        rungs = Rungs()
        for one in answers:
            if one.status in FAILED:
                rungs.record(one.kernel_hash, None)
            elif one.status in RIGHT and one.ratio is not None and one.ratio > 0:
                own = one
                rungs.record(own.kernel.hash, math.log(one.ratio), opener=own.opener)
        expected = rungs.expected()
        told = {one.schedule: one.kernel_hash for one in answers}
        schedules = dict.fromkeys([*self._asked, *told])
        found = []
        for schedule in schedules:
            score = expected.get(told.get(schedule, ""))
            found.append(ScoredSchedule(schedule=schedule, score=score))
        return found

    def _model(self, problem: str, answers: Sequence[Answer]) -> CostModel | None:
        newest = {one.schedule: one for one in answers if one.time_s}
        own = [
            Example(problem=problem, features=one.features, time_s=one.time_s or 0.0)
            for one in newest.values()
            if one.status in RIGHT and one.features
        ]
        return CostModel.fit([*self._experience.examples(), *own])

    def _chosen(self, moves: Sequence[Move], count: int, model: CostModel | None) -> list[Move]:
        """Return the moves that the model predicts to be fastest, and some that it did not rank."""
        if model is None or len(moves) <= count:
            return list(moves[:count])
        free = sum(self._source.random() < UNMODELLED for _ in range(count))
        kept, rest = list(moves[:free]), list(moves[free:])
        times = model.predict([self._space.features(move.schedule) for move in rest])
        order = sorted(range(len(rest)), key=lambda index: float(times[index]))
        return kept + [rest[index] for index in order[: count - free]]

    def _proposed(
        self, moves: Sequence[Move], hashes: Mapping[Schedule, str], *, opener: bool = False
    ) -> list[Proposal]:
        """Return proposals for moves; a schedule that gives no kernel is not asked for again."""
        found = []
        for move in moves:
            self._asked.add(move.schedule)
            try:
                kernel = self._space.kernel(move.schedule)
            except RatchetError:
                continue
            found.append(
                Proposal(
                    kernel=kernel,
                    author=self.name,
                    parents=tuple(hashes[one] for one in move.parents if one in hashes),
                    note=move.note,
                    schedule=move.schedule,
                    features=tuple(self._space.features(move.schedule)),
                    opener=opener,
                )
            )
        return found
