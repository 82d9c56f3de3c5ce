"""The author that searches a space of schedules, with what the ledger knows of other problems."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ratchet.base.errors import RatchetError
from ratchet.base.measure import FloatArray
from ratchet.write.author import FAILED, RIGHT, Answer, Progress, Proposal, Schedule, Space
from ratchet.write.effort import Rungs

ATTEMPTS: Final = 50  # Draws of a new schedule before a space counts as used up


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredSchedule:
    schedule: Schedule
    score: float | None  # Logarithm of the ratio to the reference; None if the kernel was not right


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    schedule: Schedule
    parents: tuple[Schedule, ...] = ()
    note: str = ""


def ranked(trials: Sequence[ScoredSchedule]) -> list[ScoredSchedule]:
    """Return the trials with right answers, the fastest first."""
    right = [trial for trial in trials if trial.score is not None]
    return sorted(right, key=lambda trial: trial.score or 0.0, reverse=True)


def is_valid(space: Space, schedule: Schedule) -> bool:
    """Return whether the space has a kernel for a schedule that was put together by hand."""
    try:
        space.kernel(schedule)
    except (RatchetError, ValueError, KeyError):
        return False
    return True


def differences(before: Schedule, after: Schedule) -> str:
    """Return in words what one schedule has that another has not: `tile 16 -> 32`."""
    old, new = dict(before), dict(after)
    words = [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    return ", ".join(words)


def new_draws(space: Space, seen: set[Schedule], source: random.Random) -> Iterator[Schedule]:
    """Yield schedules at random that are not in `seen`, and add them, until none is found."""
    misses = 0
    while misses < ATTEMPTS:
        schedule = space.draw(source)
        if schedule in seen:
            misses += 1
            continue
        misses = 0
        seen.add(schedule)
        yield schedule


# Parents win a tournament among the best (Goldberg and Deb, "A comparative analysis of selection
# schemes used in genetic algorithms", 1991), so that a lucky time does not become the only parent.

POPULATION: Final = 12  # Best trials from which parents are chosen
TOURNAMENT: Final = 3
FEWEST_RIGHT: Final = 4  # Right trials before there are parents
DRAWN, CROSSED = 0.15, 0.25  # Shares of moves that are drawn at random, and that cross two parents
MORE_CHANGES: Final = 0.35  # Chance of each further change to a child
PRIOR: Final = 1.0
"""Trials without any effect that are added to those of each value: one lucky time says little."""


class Evolution:
    """Chooses schedules: changes of the best ones, mixes of two of them, and random draws.

    It keeps no state but its source of chance: the trials say everything, so a resumed run goes on
    as if it had never stopped.
    """

    def __init__(self, space: Space, source: random.Random) -> None:
        self._space = space
        self._source = source

    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return up to `count` moves to schedules that no trial has; none if the space is used up.

        `trials` are in the order in which they were screened.
        """
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
            if len(parents) >= FEWEST_RIGHT and self._source.random() >= DRAWN:
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
        if len(right) < FEWEST_RIGHT:
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
        for _ in range(3):
            if self._source.random() >= MORE_CHANGES:
                break
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


# Ridge regression gives the effects that problems share; the nearest neighbours give what is left,
# since choices of a schedule hang together. Times are centred problem by problem: the model ranks
# schedules of one problem, and does not need to know how large the problem is.

FEWEST: Final = 12  # Examples below which there is no model
NEIGHBOURS: Final = 8
RIDGE: Final = 1.0
MOST_EXAMPLES: Final = 4000  # Examples that are used, the newest


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A schedule that was timed on a problem."""

    problem: str  # The problem's hash
    features: tuple[float, ...]
    time_s: float
    kernel: str = ""
    schedule: Schedule = ()
    right: bool = True


class CostModel:
    """Predicts how a schedule's time compares with others of the same problem."""

    def __init__(self, features: FloatArray, values: FloatArray) -> None:
        self._mean, spread = features.mean(axis=0), features.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        self._known = self._scaled(features)
        gram = self._known.T @ self._known + RIDGE * np.eye(self._known.shape[1])
        self._weights = np.linalg.solve(gram, self._known.T @ values)
        self._left = values - self._known @ self._weights

    @staticmethod
    def fit(examples: Sequence[Earlier]) -> CostModel | None:
        """Return a model of the newest examples; None if too few have features of one length."""
        if not examples:
            return None
        length = len(examples[-1].features)
        kept = [
            one
            for one in examples
            if len(one.features) == length
            and one.time_s > 0
            and all(map(math.isfinite, one.features))
        ][-MOST_EXAMPLES:]
        if len(kept) < FEWEST or length == 0:
            return None
        times = np.log([one.time_s for one in kept])
        return CostModel(np.asarray([one.features for one in kept]), _centred(kept, times))

    def predict(self, features: Sequence[Sequence[float]]) -> FloatArray:
        """Return log time of each schedule, relative to its problem's mean: lower is faster."""
        scaled = self._scaled(np.asarray(features, dtype=np.float64))
        distances = np.linalg.norm(scaled[:, None, :] - self._known[None, :, :], axis=-1)
        near = np.argsort(distances, axis=1)[:, :NEIGHBOURS]
        weights = 1.0 / (0.1 + np.take_along_axis(distances, near, axis=1))
        left = (weights * self._left[near]).sum(axis=1) / weights.sum(axis=1)
        found: FloatArray = scaled @ self._weights + left
        return found

    def _scaled(self, features: FloatArray) -> FloatArray:
        scaled: FloatArray = (features - self._mean) / self._spread
        return scaled


def _centred(examples: Sequence[Earlier], times: FloatArray) -> FloatArray:
    """Return each log time less the mean of its problem's."""
    by_problem: dict[str, list[int]] = {}
    for index, one in enumerate(examples):
        by_problem.setdefault(one.problem, []).append(index)
    found = np.array(times)
    for places in by_problem.values():
        found[places] -= times[places].mean()
    return found


BEST_OF_EACH: Final = 2  # Schedules that are taken from each earlier problem
MOST_OPENERS: Final = 8  # Schedules of earlier problems that are tried first
LOOKED_AT: Final = 60  # Schedules of other problems that are tried on a space, the newest
SLOWER: Final = 0.5
"""A schedule of another problem that is predicted to be slower than the space's own first choice by
more than this, in the logarithm of the time, is left out."""


@dataclass(frozen=True, slots=True)
class Experience:
    """Everything that earlier runs on this device timed."""

    earlier: Sequence[Earlier] = field(default_factory=tuple)

    def openers(self, space: Space, problem: str, model: CostModel | None) -> list[Move]:
        """Return what to try first on a problem: a similar problem's best, then the space's own.

        With a model, those of other problems are sorted by their predicted times, and left out if
        they are predicted much slower than what the space proposes itself.
        """
        own = [Move(schedule=one, note="the space's first choices") for one in space.first()]
        same = [one for one in self._best() if one.problem == problem]
        near = self._nearest(space, problem, model, own)
        valid = [
            Move(schedule=one.schedule, note=note)
            for ones, note in (
                (same, "the best of an earlier run on this problem"),
                (near, "the best on a similar problem"),
            )
            for one in ones
            if is_valid(space, one.schedule)
        ]
        unique: dict[Schedule, Move] = {}
        for move in [*valid[:MOST_OPENERS], *own]:
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
            far = [  # features of different kinds have no distance
                math.dist(one.features, here) if len(one.features) == len(here) else math.inf
                for one, here in zip(others, features, strict=True)
            ]
            return [others[index] for index in sorted(range(len(others)), key=far.__getitem__)]
        times = [float(value) for value in model.predict(features)]
        limit = math.inf
        if own:
            first = model.predict([space.features(move.schedule) for move in own])
            limit = float(min(first)) + SLOWER
        order = sorted(range(len(others)), key=lambda index: times[index])
        return [others[index] for index in order if times[index] <= limit]


OVERSAMPLED: Final = 4  # Moves that the cost model chooses from, for each one that is proposed
UNMODELLED: Final = 0.25  # Share of moves that the cost model has no say in


class SearchAuthor:
    """Proposes the kernels of a space."""

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        experience: Experience | None = None,
        name: str = "search",
    ) -> None:
        self.name = name
        self._space = space
        self._source = random.Random(seed)
        self._evolution = Evolution(space, self._source)
        self._experience = experience or Experience()
        self._openers: list[Move] | None = None
        self._asked: set[Schedule] = set()
        self._others: dict[str, bool] = {}
        """Kernels of other authors, and whether their schedules are of this space."""

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        answers = [one for one in progress.answers if self._is_own(one)]
        trials = self._trials(answers)
        hashes = {one.schedule: one.kernel_hash for one in answers}
        model = self._model(progress.problem.hash, answers)
        if self._openers is None:
            key = progress.problem.hash
            self._openers = self._experience.openers(self._space, key, model)
        tested = {trial.schedule for trial in trials}
        proposals: list[Proposal] = []
        while self._openers and len(proposals) < count:
            move = self._openers.pop(0)
            if move.schedule not in tested:
                reasoned = move.schedule not in self._space.first()[1:]
                proposals += self._proposed([move], hashes, opener=reasoned)
        left = count - len(proposals)
        if left > 0:
            tried = [*trials, *(ScoredSchedule(schedule=p.schedule, score=None) for p in proposals)]
            more = 1 if model is None else OVERSAMPLED
            moves = self._chosen(self._evolution.ask(tried, left * more), left, model)
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

    def _trials(self, answers: Sequence[Answer]) -> list[ScoredSchedule]:
        """Return every schedule that was proposed, with the score to expect of it."""
        rungs = Rungs()
        for one in answers:
            if one.status in FAILED:
                rungs.record(one.kernel_hash, None)
            elif one.status in RIGHT and one.ratio is not None and one.ratio > 0:
                rungs.record(one.kernel_hash, math.log(one.ratio), opener=one.opener)
        expected = rungs.expected()
        told = {one.schedule: one.kernel_hash for one in answers}
        return [
            ScoredSchedule(schedule=one, score=expected.get(told.get(one, "")))
            for one in dict.fromkeys([*self._asked, *told])
        ]

    def _model(self, problem: str, answers: Sequence[Answer]) -> CostModel | None:
        newest = {one.schedule: one for one in answers if one.time_s}
        own = [
            Earlier(problem=problem, features=one.features, time_s=one.time_s or 0.0)
            for one in newest.values()
            if one.status in RIGHT and one.features
        ]
        known = (one for one in self._experience.earlier if one.right)
        return CostModel.fit([*known, *own])

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
