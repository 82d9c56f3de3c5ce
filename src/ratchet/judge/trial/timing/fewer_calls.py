"""Repeat with half the calls in a batch if a GPU refuses memory, which others may hold too.

The refusal is the environment's fault: where not even one call fits, the verdict is `unmeasured`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.reference import DeviceMemoryRefused
from ratchet.judge.verdict import Evidence

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def with_fewer_calls(
    opened: OpenProblem, wanted: int, run: Callable[[int], T], *, least: int = 1
) -> tuple[T, tuple[Evidence, ...]]:
    """Run with the wanted calls of a batch, and again with half as long as memory is refused.

    Later batches of the verdict are as small. The evidence says so. Raises DeviceMemoryRefused if
    memory is refused for the `least`.
    """
    while True:
        calls = max(least, wanted // opened.batch_part)
        try:
            found = run(calls)
        except DeviceMemoryRefused as error:
            if calls <= least or opened.accelerator is None:
                raise
            LOG.debug("half of %d calls, because %s", calls, error)
        else:
            return found, told(calls, wanted)
        opened.batch_part *= 2


def told(calls: int, wanted: int) -> tuple[Evidence, ...]:
    """Return the evidence of smaller batches, if they are."""
    if calls == wanted:
        return ()
    detail = f"device memory was refused: batches of {named(calls)} instead of {wanted}"
    return (Evidence(check="memory for batches", passed=True, detail=detail),)


def named(calls: int) -> str:
    """Return a number of calls in words."""
    return "1 call" if calls == 1 else f"{calls} calls"
