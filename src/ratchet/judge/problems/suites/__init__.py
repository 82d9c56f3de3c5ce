"""The shipped suites of problems. Importing this package does not import torch."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.base.process.channel import Message
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites.names import NAMES


@cache
def _family(name: str) -> tuple[Problem, ...]:
    """Return the problems of one family of NAMES."""
    return tuple(importlib.import_module(f"{__name__}.{name}").problems())


@cache
def _training() -> tuple[Problem, ...]:
    return tuple(problem for family in NAMES for problem in _family(family))


SUITES: Final[Mapping[str, Callable[[], tuple[Problem, ...]]]] = {"training": _training}
"""Every suite by name."""


def check_suite(name: str) -> None:
    """Raise a KernelError for an unknown suite, with the known ones. Imports no torch."""
    if name not in SUITES:
        raise KernelError(f"unknown suite {name!r}: use one of {', '.join(SUITES)}")


def load_suite(name: str) -> tuple[Problem, ...]:
    """Return the problems of a suite; a KernelError lists the known suites for any other name."""
    check_suite(name)
    return SUITES[name]()


def answer(request: Message) -> Message:
    """Return the problem of a `name`, in a process that holds torch (`file_worker.answer`)."""
    return {"problem": find_problem(request["name"]).as_json()}


def family_of(name: str) -> str:
    """Return a problem's family; a KernelError with the nearest names if it is unknown. No torch.

    `find_problem` imports only that family.
    """
    known = {problem: family for family, problems in NAMES.items() for problem in problems}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    hint = f"near it are {', '.join(near)}" if near else "ratchet judge --list shows them"
    raise KernelError(f"problem {name!r} is in no suite: {hint}")


def find_problem(name: str) -> Problem:
    """Return a problem of any suite; a KernelError with the nearest names if it is unknown."""
    return next(one for one in _family(family_of(name)) if one.name == name)


def names_like(pattern: str) -> list[str]:
    """Return problem names that match a shell pattern or contain a word; a KernelError for none."""
    known = [name for problems in NAMES.values() for name in problems]
    asked = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    found = fnmatch.filter(known, asked)
    if not found:
        raise KernelError(
            f"no problem's name matches {pattern!r}: ratchet judge --list prints all {len(known)}"
        )
    return found
