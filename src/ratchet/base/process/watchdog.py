"""A watchdog that kills all descendants of a killed process.

SIGKILL gives a process no chance to clean up, so its children live on: workers that are still
importing torch, and the compilers that those started. Every process that must not outlive its
starter therefore carries a mark in its environment, and its children inherit the mark. The first
mark starts this file as a program. It waits until the starter ends, then kills every process with
the mark.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Mapping

MARK = "RATCHET_STARTED_BY"
QUIET_SWEEPS, BETWEEN_S = 10, 0.05
"""Consecutive scans that must find nothing: a starting process shows its mark a little later."""


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `base` (else this process's environment) with the mark of this process's watchdog.

    A process that carries a mark itself passes it on: its starter's watchdog watches both.
    """
    own = os.environ if base is None else base
    return {**own, MARK: os.environ.get(MARK) or _watched(os.getpid())}


def mark() -> tuple[str, str]:
    """Return that mark: the name of a variable and its value."""
    return MARK, environment({})[MARK]


@functools.cache
def _watched(pid: int) -> str:
    """Start this process's watchdog and return the mark that it looks for."""
    mark = f"{pid}-{os.urandom(8).hex()}"
    watched = os.pidfd_open(pid)  # inherited, so that even an immediate death is seen
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__, mark],
            {"PATH": os.defpath},
            file_actions=[(os.POSIX_SPAWN_DUP2, watched, 0), *silent],
            setsid=True,  # ignore an interrupt from the starter's terminal
        )
    finally:
        os.close(watched)
    return mark


def main() -> None:
    """Wait until the process behind descriptor 0 ends, then kill all processes with the mark."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.poll()
    wanted = f"{MARK}={sys.argv[1]}".encode()
    quiet = 0
    while quiet < QUIET_SWEEPS:
        found = [_kill(int(name), wanted) for name in os.listdir("/proc") if name.isdigit()]
        quiet = 0 if any(found) else quiet + 1
        time.sleep(BETWEEN_S)


def _kill(pid: int, wanted: bytes) -> bool:
    """Kill a process if it carries the mark; return whether it does."""
    with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
        process = os.pidfd_open(pid)  # opened first: the pid may soon belong to another process
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = wanted in file.read().split(b"\0")
            if marked:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            return marked
        finally:
            os.close(process)
    return False


if __name__ == "__main__":
    main()
