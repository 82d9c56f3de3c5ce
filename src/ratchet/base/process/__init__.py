"""Processes that the judge owns: a child, its private channel, its whole family, its time.

Here: the limits on time, of a verdict and of each step of a process within it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from ratchet.base.process import families

STEP_S = 30.0
"""Work that a step of a candidate's process may always do, whatever is left of the time limit:
compiling, importing torch and the kernel, mapping memory."""
FIRST_CALL_S = 120.0
"""Further work of a Python kernel's first call in a process on tensors of new sizes: torch.compile
and Triton compile in it. Their compilers belong to the family, and are at work then."""
REFERENCE_STEP_S = 120.0  # The same for the reference worker, which is trusted
_END: ContextVar[float] = ContextVar("_END", default=math.inf)
"""The moment at which every wait for a process ends, whatever it waits for."""


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


# On a busy machine a process waits for a core while the wall clock runs. So a limit counts CPU time
# while any thread of the family runs or waits for a core (or a disk), and the wall clock while all
# of them sleep. A kernel that sleeps or deadlocks is given up as soon as one that computes. A much
# longer wall limit ends everything else.

WALL_FACTOR: Final = 10.0  # The wall limit, as a multiple of the limit on work
TICK_S, LEAST_TICK_S = 0.1, 0.01
TICKS: Final = 40
"""Number of times that the family is sampled within a limit; at most once every TICK_S."""
WAITS_FOR_MACHINE: Final = frozenset("RD")
"""States of a thread that runs, waits for a core, or waits for a disk (proc(5))."""
CLOCK_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class WorkLimit:
    """The time left of a limit that starts now; a waiting process polls it."""

    def __init__(self, limit_s: float, members: Callable[[], Iterable[int]]) -> None:
        """Start the limit. `members` lists the family's processes, first after TICK_S."""
        self._limit_s = limit_s
        self._members = members
        self._tick_s = max(TICK_S, limit_s / TICKS)
        self._began = self._seen = time.monotonic()
        self._cpu_time_s: float | None = None
        self.spent_s = 0.0  # The family's time at work, up to the last sample

    def left_s(self) -> float:
        """Return the seconds until the limit could be reached; 0 means that it is over."""
        now = time.monotonic()
        if now - self._seen >= min(self._tick_s, max(LEAST_TICK_S, self._limit_s - self.spent_s)):
            self._look(now)
        wall_s = WALL_FACTOR * self._limit_s - (now - self._began)
        return min(wall_s, self._limit_s - self.spent_s)

    def _look(self, now: float) -> None:
        """Charge the time since the last sample."""
        passed_s, self._seen = now - self._seen, now
        cpu_time_s, awake = at_work(self._members())
        if self._cpu_time_s is not None and awake:
            # If nobody waited for a child that ended, its time is lost with it.
            worked_s = max(0.0, cpu_time_s - self._cpu_time_s)
            passed_s = min(passed_s, worked_s)
        self._cpu_time_s = cpu_time_s
        self.spent_s += passed_s


def at_work(pids: Iterable[int]) -> tuple[float, bool]:
    """Return the CPU seconds of processes and their ended children, and if any thread is awake."""
    total_s, awake = 0.0, False
    for pid in pids:
        fields = families.stat_fields(f"/proc/{pid}/stat")
        if fields:  # utime, stime, cutime and cstime
            total_s += sum(map(int, fields[11:15])) * CLOCK_TICK_S
            awake = awake or not WAITS_FOR_MACHINE.isdisjoint(families.thread_states(pid))
    return total_s, awake
