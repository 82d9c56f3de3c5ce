"""Suites of problems that ship. Importing this package imports no torch; loading a suite does."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from ratchet.errors import KernelError
from ratchet.kernels.problem import Problem

FAMILIES: Final = (
    "normalisation",
    "activations",
    "losses",
    "attention",
    "tables",
    "convolution",
    "updates",
    "movement",
    "quantisation",
    "products",
)
"""Modules of this package, each with `problems()`, in the order of the table."""


@cache
def _training() -> tuple[Problem, ...]:
    found = [
        problem
        for family in FAMILIES
        for problem in importlib.import_module(f"{__name__}.{family}").problems()
    ]
    return (*_shipped(), *found)


def _shipped() -> list[Problem]:
    """The problems that the library's own kernels answer, at a transformer's sizes on each tier."""
    from ratchet.kernels.library import LIBRARY
    from ratchet.kernels.suites.shipped import at_every_tier

    return [problem for kernel in LIBRARY.values() for problem in at_every_tier(kernel.problems)]


SUITES: Final[Mapping[str, Callable[[], tuple[Problem, ...]]]] = {"training": _training}
"""Every suite by name."""


def load_suite(name: str) -> tuple[Problem, ...]:
    """The problems of a suite; a KernelError that lists the known where there is none."""
    if name not in SUITES:
        raise KernelError(f"suite {name!r} is not known: there is {', '.join(SUITES)}")
    return SUITES[name]()


def find_problem(name: str) -> Problem:
    """A problem of any suite by its name; a KernelError with the nearest names otherwise."""
    known = {problem.name: problem for suite in SUITES for problem in load_suite(suite)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    hint = f"near it are {', '.join(near)}" if near else f"there are {len(known)}"
    raise KernelError(f"problem {name!r} is in no suite: {hint}")
