"""OpenMP threads that sleep while they wait, for as long as nothing is timed.

Threads of libgomp spin before they sleep. Beside another process that spinning takes the core from
the thread that they wait for: on two busy cores a step of llama-8m took 2.2 s, and 0.5 s once
its threads slept. Their environment is read when a process starts, so it would hold while a step
is timed, too. But libgomp also hardly spins (1,000 turns of a loop) while a process has more
threads than there are cores (GCC's libgomp, config/linux/wait.h and team.c). A second team of
threads makes it so, and its end takes that back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from types import TracebackType
from typing import Final

LIBRARY: Final = "libgomp"
LOOKS_EVERY_S: Final = 0.05  # Until the process has loaded the library
FEW_CORES: Final = 32  # With more of them, what runs beside an arm leaves it enough


class Patience:
    """A context in which the process's OpenMP threads sleep while they wait; may be nested."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and 1 < cores() <= FEW_CORES:
            self._over.clear()
            self._thread = threading.Thread(target=self._hold, daemon=True)
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _hold(self) -> None:
        """Keep a team of threads until it is over; the team ends with this thread."""
        while (library := _loaded()) is None:
            if self._over.wait(LOOKS_EVERY_S):
                return
        work = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)  # any function will do
        library.GOMP_parallel(work, None, ctypes.c_uint(cores()), ctypes.c_uint(0))
        self._over.wait()


def yield_cores() -> None:
    """Let this process, and those that it starts, run only on cores that nothing else wants.

    At the lowest priority alone (nice 19) a core counts as taken, and a thread that wakes up waits
    behind the one that woke it: steps with two threads had 0.86 of two cores.
    """
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def cores() -> int:
    """Return the number of cores that this process may use, as libgomp counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _loaded() -> ctypes.CDLL | None:
    """Return GNU's OpenMP library if this process has loaded it."""
    try:
        with open("/proc/self/maps") as maps:
            found = {line.split()[-1] for line in maps if LIBRARY in line}
    except OSError:
        return None
    for path in sorted(found):
        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:  # replaced on disk meanwhile
            continue
    return None
