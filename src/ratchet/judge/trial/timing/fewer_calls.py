"""Repeat with half the calls in a batch if a GPU refuses memory, which others may hold too.

The refusal is the environment's fault: where not even one call fits, the verdict is `unmeasured`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.reference import DeviceMemoryRefused

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def with_fewer_calls(
    opened: OpenProblem, wanted: int, run: Callable[[int], T], *, least: int = 1
) -> T:
    """Run with the wanted calls of a batch, and again with half as long as memory is refused.

    Later batches of the verdict are as small. Raises DeviceMemoryRefused if memory is refused for
    the `least`.
    """
    while True:
        calls = max(least, wanted // opened.batch_part)
        try:
            return run(calls)
        except DeviceMemoryRefused as error:
            if calls <= least or opened.accelerator is None:
                raise
            LOG.debug("half of %d calls, because %s", calls, error)
        opened.batch_part *= 2


def told_of_fewer(opened: OpenProblem, wanted: int) -> str:
    """Return what to tell of smaller batches, or "" if they have the wanted calls."""
    calls = max(1, wanted // opened.batch_part)
    if calls == wanted:
        return ""
    named = "1 call" if calls == 1 else f"{calls} calls"
    return f"device memory was refused: batches of {named} instead of {wanted}"
