"""Limits on the time of a verdict, and of each step of a process within it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from ratchet.base.errors import RatchetError

STEP_S = 30.0
"""Work that a step of a candidate's process may always do, whatever is left of the time limit:
compiling, importing torch and the kernel, mapping memory."""
FIRST_CALL_S = 120.0
"""Further work of a Python kernel's first call in a process on tensors of new sizes: torch.compile
and Triton compile in it. Their compilers belong to the family, and are at work then."""
REFERENCE_STEP_S = 120.0
"""The same for the reference worker, which is trusted."""
_END: ContextVar[float] = ContextVar("_END", default=math.inf)
"""The moment at which every wait for a process ends, whatever it waits for."""


class OutOfTime(RatchetError):
    """The time that a user gave has run out while a process was at work."""


@contextlib.contextmanager
def ends_within(limit_s: float) -> Iterator[None]:
    """Let no wait for a process outlive this: a limit of the wall clock, over all steps."""
    before = _END.set(min(_END.get(), time.monotonic() + limit_s))
    try:
        yield
    finally:
        _END.reset(before)


def until_the_end_s() -> float:
    """Return the seconds until every wait ends; infinite where nobody set an end."""
    return _END.get() - time.monotonic()


def within_the_end(left_s: Callable[[], float]) -> Callable[[], float]:
    """Return a limit of one wait that also ends where all do."""
    return lambda: min(left_s(), until_the_end_s())


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The end of the time that a verdict may take.

    It decides how much is measured. No step is cut short by it: each has a limit of its own, and
    only `ends_within` ends them all.
    """

    deadline: float
    limit_s: float

    @staticmethod
    def of(limit_s: float) -> Clock:
        """A clock that runs out `limit_s` seconds from now."""
        return Clock(deadline=time.monotonic() + limit_s, limit_s=limit_s)

    def anew(self) -> Clock:
        """A clock of the same limit that starts now."""
        return Clock.of(self.limit_s)

    @property
    def over(self) -> bool:
        """True if it has run out."""
        return time.monotonic() >= self.deadline

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def step_limit_s(self) -> float:
        """Seconds that a step of a candidate's process may be at work."""
        return max(STEP_S, self.left_s)

    @property
    def reference_limit_s(self) -> float:
        """Seconds that a step of the reference worker may be at work."""
        return max(REFERENCE_STEP_S, self.left_s)
