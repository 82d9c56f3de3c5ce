"""A watchdog that ends what a killed process leaves behind, however deep and however young.

SIGKILL gives a process no chance to tidy up, and what it started lives on: workers that are still
importing torch, and the compilers that those started. So every process that must not outlive its
starter carries a mark in its environment, which all that it starts inherits. The first mark starts
this file as a program. It waits for the starter's end, then kills whatever carries the mark.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping

MARK = "RATCHET_STARTED_BY"
QUIET_SWEEPS, BETWEEN_S = 10, 0.05
"""So often nothing must be found: what is only being started then shows its mark a little later."""


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `base` (else this process's environment) for a process that ends when this one does.

    A process that carries a mark itself passes it on, as the watchdog of its starter sees to both.
    """
    own = os.environ if base is None else base
    return {**own, MARK: os.environ.get(MARK) or _watched(os.getpid())}


@functools.cache
def _watched(pid: int) -> str:
    """Start the watchdog of this process and return the mark that it looks for."""
    mark = f"{pid}-{os.urandom(8).hex()}"
    watched = os.pidfd_open(pid)  # inherited, so that no death is too early to be seen
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__, mark],
            {"PATH": os.defpath},
            file_actions=[(os.POSIX_SPAWN_DUP2, watched, 0), *silent],
            setsid=True,  # an interrupt at its starter's terminal is not for it
        )
    finally:
        os.close(watched)
    return mark


def main() -> None:
    """Wait for the process behind descriptor 0, then end what carries the mark that is given."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.poll()
    wanted = f"{MARK}={sys.argv[1]}".encode()
    quiet = 0
    while quiet < QUIET_SWEEPS:
        found = [_kill(pid, wanted) for pid in _others()]
        quiet = 0 if any(found) else quiet + 1
        time.sleep(BETWEEN_S)


def _others() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _kill(pid: int, wanted: bytes) -> bool:
    """Kill a process if it carries the mark; return whether it does."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        process = os.pidfd_open(pid)  # first: the number may soon be another process's
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
