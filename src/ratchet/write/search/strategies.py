"""Search strategies: which schedule to try next, by evolution or by Optuna's estimator."""

from __future__ import annotations

import abc
import importlib.util
import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import KernelError, RatchetError
from ratchet.write.author import Schedule, Space

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


class SearchStrategy(abc.ABC):
    """Chooses schedules. It keeps no state but its source of chance: the trials say everything, so
    a resumed run goes on as if it had never stopped."""

    def __init__(self, space: Space, source: random.Random) -> None:
        self._space = space
        self._source = source

    @abc.abstractmethod
    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return up to `count` moves to schedules that no trial has; none if the space is used up.

        `trials` are in the order in which they were screened.
        """


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
FEWEST: Final = 4  # Right trials before there are parents
DRAWN, CROSSED = 0.15, 0.25  # Shares of moves that are drawn at random, and that cross two parents
MORE_CHANGES: Final = 0.35  # Chance of each further change to a child
PRIOR: Final = 1.0
"""Trials without any effect that are added to those of each value: one lucky time says little."""


class Evolution(SearchStrategy):
    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
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


# A space tells its choices only by drawing, so Optuna's sampler sees those of many draws. A
# suggestion that the space does not have is left out, and a random schedule takes its place.

DRAWS: Final = 256  # Schedules from which the choices are learned
ABSENT: Final = ""  # Value of a choice that a schedule does not have
STARTUP: Final = 12  # Trials that are drawn before the estimator suggests any


class OptunaSearch(SearchStrategy):
    """Lets optuna choose; its study is rebuilt from the trials of each turn."""

    def __init__(self, space: Space, source: random.Random) -> None:
        """Raise a KernelError where optuna is not installed."""
        if importlib.util.find_spec("optuna") is None:
            raise KernelError(
                "--search optuna needs optuna: pip install 'torch-ratchet[write]', or leave it out"
            )
        super().__init__(space, source)
        self._choices = _choices(space, source)

    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return suggestions that were not tried; see `SearchStrategy.ask`."""
        seen = {trial.schedule for trial in trials}
        draws = new_draws(self._space, seen, self._source)
        if len(ranked(trials)) < STARTUP:
            return [Move(schedule=one, note="drawn") for one in itertools.islice(draws, count)]
        moves: list[Move] = []
        for suggested in self._suggestions(trials, 2 * count):
            if len(moves) == count:
                break
            if suggested in seen or not is_valid(self._space, suggested):
                continue
            seen.add(suggested)
            moves.append(Move(schedule=suggested, note="suggested by optuna"))
        drawn = itertools.islice(draws, count - len(moves))
        return moves + [Move(schedule=one, note="drawn") for one in drawn]

    def _suggestions(self, trials: Sequence[ScoredSchedule], count: int) -> list[Schedule]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        spread: Mapping[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values)
            for name, values in self._choices.items()
        }
        sampler = optuna.samplers.TPESampler(
            seed=self._source.randrange(2**31), n_startup_trials=0, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        worst = min((trial.score for trial in trials if trial.score is not None), default=0.0)
        for trial in trials:
            given = dict(trial.schedule)
            values = {name: given.get(name, ABSENT) for name in spread}
            if any(values[name] not in self._choices[name] for name in spread):
                continue
            score = worst - 1.0 if trial.score is None else trial.score
            study.add_trial(
                optuna.trial.create_trial(params=values, distributions=dict(spread), value=score)
            )
        asked = [study.ask(dict(spread)) for _ in range(count)]
        return [
            tuple(sorted((name, str(v)) for name, v in one.params.items() if v != ABSENT))
            for one in asked
        ]


def _choices(space: Space, source: random.Random) -> dict[str, tuple[str, ...]]:
    """Return every value that many draws give each choice."""
    drawn = [dict(one) for one in [*space.first(), *(space.draw(source) for _ in range(DRAWS))]]
    names = sorted({name for one in drawn for name in one})
    return {name: tuple(sorted({one.get(name, ABSENT) for one in drawn})) for name in names}
