"""Problems that a policy is trained and tested on, with their schedules, split by family."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import LearnError, RatchetError
from ratchet.judge.api import as_problem
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import NAMES
from ratchet.write.generator import space_for
from ratchet.write.generator.space import GeneratedSpace

LOG = logging.getLogger(__name__)
UNSEEN: Final = ("normalisation", "convolution", "movement")
"""Families that no policy is trained on, unless others are named."""
TRAINED: Final = ("activations", "attention", "losses", "products", "quantisation", "updates")
"""Families to train on, unless others are named. They cover each choice of the unseen families'
schedules several times: a policy can only guess at a choice that it never met."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnTask:
    """A problem, its family, and the schedules that its kernels can have."""

    problem: Problem
    family: str
    space: GeneratedSpace
    key: str
    """The problem's hash."""

    @property
    def name(self) -> str:
        """Return the problem's name."""
        return self.problem.name


MOST_UNSEEN: Final = 6
"""Most problems of an unseen family: answers to them are judged for every policy."""
Names = dict[str, list[str]]
"""Names of problems by family."""


def split_names(
    trained: Sequence[str], unseen: Sequence[str], per_family: int, seed: int
) -> tuple[Names, Names]:
    """Return the names of the problems to train on, and of the unseen ones, by family.

    Draws `per_family` of each family, and at most MOST_UNSEEN of an unseen one, by the seed.

    Raises:
        LearnError: a family is unknown or on both sides, or a side has none.
    """
    for one in (*trained, *unseen):
        if one not in NAMES:
            raise LearnError(f"unknown family {one!r}: use some of {', '.join(NAMES)}")
    both = sorted({*trained} & {*unseen})
    if both:
        raise LearnError(f"family {both[0]!r} is both trained on and unseen: leave it out of one")
    if not trained or not unseen:
        raise LearnError("give at least one family to train on, and one with --unseen")
    return (
        {one: _drawn(one, per_family, seed) for one in trained},
        {one: _drawn(one, min(per_family, MOST_UNSEEN), seed) for one in unseen},
    )


def _drawn(family: str, count: int, seed: int) -> list[str]:
    order = list(NAMES[family])
    random.Random(f"{seed} {family}").shuffle(order)
    return order[:count]


def make_tasks(names: Names, *, language: str = "cpp") -> list[LearnTask]:
    """Return the problems that the generator can write, each with its schedules.

    A problem with an op that the generator lacks, or with one schedule alone, is left out.
    """
    return list(tasks_of(((family, one) for family, own in names.items() for one in own), language))


def first_tasks(names: Names, language: str, *, least: int, until: float) -> list[LearnTask]:
    """Return the problems that can be read before `until`, one of each family in turn.

    Reads at least `least` of them, however long that takes.
    """
    rounds = itertools.zip_longest(
        *([(family, one) for one in own] for family, own in names.items())
    )
    order = [pair for one in rounds for pair in one if pair is not None]
    found: list[LearnTask] = []
    for task in tasks_of(order, language):
        found.append(task)
        if len(found) >= least and time.monotonic() > until:
            break
    return found


def by_family(tasks: Sequence[LearnTask]) -> Names:
    found: Names = {}
    for one in tasks:
        found.setdefault(one.family, []).append(one.name)
    return found


def tasks_of(names: Iterable[tuple[str, str]], language: str) -> Iterable[LearnTask]:
    """Yield the tasks of `make_tasks` for pairs of family and name."""
    for family, name in names:
        try:
            yield task_of(as_problem(name), family, language=language)
        except RatchetError as error:
            LOG.info("left out %s: %s", name, error)


def task_of(problem: Problem, family: str = "", *, language: str = "cpp") -> LearnTask:
    """Return one problem's task.

    Raises:
        RatchetError: the generator lacks one of its ops, or it has nothing to choose.
    """
    space = space_for(problem, device="cpu" if language == "cpp" else "cuda")
    assert isinstance(space, GeneratedSpace)
    if all(len(values) < 2 for values in space.options.values()):
        raise LearnError(f"problem {problem.name!r} has one schedule alone: nothing to choose")
    return LearnTask(problem=problem, family=family, space=space, key=problem.hash)
