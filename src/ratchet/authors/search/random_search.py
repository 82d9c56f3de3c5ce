"""Random search: the baseline that every other search must beat at equal candidates."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from ratchet.authors.author import Space
from ratchet.authors.search.strategy import Move, ScoredSchedule, new_draws


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
