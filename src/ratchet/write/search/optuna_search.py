"""Optuna's tree-structured Parzen estimator over the choices of a space.

A space tells its choices only by drawing, so the sampler sees those of many draws. A suggestion
that the space does not have is left out, and a random schedule takes its place.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.write.author import Schedule, Space
from ratchet.write.search.strategy import Move, ScoredSchedule, is_valid, new_draws, ranked

DRAWS: Final = 256
"""Schedules from which the choices are learned."""
ABSENT: Final = ""
"""Value of a choice that a schedule does not have."""
STARTUP: Final = 12
"""Trials that are drawn before the estimator suggests any."""


class OptunaSearch:
    """Lets optuna choose; its study is rebuilt from the trials of each turn."""

    name = "optuna"

    def __init__(self, space: Space, source: random.Random) -> None:
        """Raise a KernelError where optuna is not installed."""
        if importlib.util.find_spec("optuna") is None:
            raise KernelError(
                "--search optuna needs optuna: pip install 'torch-ratchet[write]', or leave it out"
            )
        self._space = space
        self._source = source
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
