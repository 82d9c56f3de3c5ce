"""The common part of all searches: a screened trial, a move to try next, and a strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ratchet.base.errors import RatchetError
from ratchet.write.author import Schedule, Space

ATTEMPTS: Final = 50
"""Draws of a new schedule before a space counts as used up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredSchedule:
    """A schedule that was screened."""

    schedule: Schedule
    score: float | None
    """Logarithm of the ratio to the reference; None if the kernel was not right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A schedule to screen next."""

    schedule: Schedule
    parents: tuple[Schedule, ...] = ()
    note: str = ""


class SearchStrategy(Protocol):
    """Chooses schedules. It keeps no state but its source of chance: the trials say everything, so
    a resumed run goes on as if it had never stopped."""

    @property
    def name(self) -> str:
        """Return the strategy's name on the command line and in the ledger."""
        ...

    def ask(self, trials: Sequence[ScoredSchedule], count: int) -> list[Move]:
        """Return up to `count` moves to schedules that no trial has; none if the space is used up.

        `trials` are in the order in which they were screened.
        """
        ...


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
