"""A time limit for a process family that does not depend on how busy the machine is.

On a busy machine a process waits for a core while the wall clock runs. So a limit counts CPU time
while any thread of the family runs or waits for a core (or a disk), and the wall clock while all of
them sleep. A kernel that sleeps or deadlocks is given up as soon as one that computes. A much
longer wall limit ends everything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from ratchet.base.process import families

WALL_FACTOR: Final = 10.0
"""The wall limit, as a multiple of the limit on work."""
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
        self.spent_s = 0.0
        """The family's time at work, up to the last sample."""

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
