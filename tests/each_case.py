"""One test of many cases that take a millisecond each: pytest itself takes two for a test."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SHOWN = 5
"""Failures that are told with their tracebacks."""


def each(cases: Iterable[Any], *, parts: int = 1) -> Callable[[Callable[..., None]], Any]:
    """Make a check the test of all its cases; it goes on after a failure and names every one.

    A case that is a tuple holds the check's arguments. Parts let processes share the cases.
    """
    every = list(cases)

    def decorate(check: Callable[..., None]) -> Any:
        def run(part: int) -> None:
            failed = []
            for case in every[part::parts]:
                try:
                    check(*(case if isinstance(case, tuple) else (case,)))
                except Exception:
                    failed.append((case, traceback.format_exc()))
            told = "\n".join(f"{case}:\n{error}" for case, error in failed[:SHOWN])
            assert not failed, f"{[case for case, _ in failed]}\n{told}"

        def alone() -> None:
            run(0)

        made = run if parts > 1 else alone
        made.__name__, made.__qualname__, made.__doc__ = (
            check.__name__,
            check.__name__,
            check.__doc__,
        )
        made.__module__ = check.__module__
        return pytest.mark.parametrize("part", range(parts))(run) if parts > 1 else made

    return decorate
