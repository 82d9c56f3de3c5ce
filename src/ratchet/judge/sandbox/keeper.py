"""The process between the judge and a candidate without namespaces, like PID 1 in a namespace.

It drops the judge's privileges, closes the file system to the candidate if Landlock can, and starts
it. What the candidate leaves behind becomes this process's child and ends with it: when the worker
ends, or when the judge does, in whatever way. The judge stops all of the family but this process.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, replace
from typing import NoReturn

from ratchet.base.process import families
from ratchet.judge.sandbox import landlock, namespaces

WAKES = (signal.SIGCHLD, signal.SIGTERM)
"""The end of a child, and of the judge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """Orders of the judge to a keeper."""

    judge: int
    """The judge's process id."""
    folder: str
    """The candidate's own folder, its working directory."""
    mark: tuple[str, str]
    """The environment variable by which the judge's watchdog knows its processes. The keeper
    itself has none: the watchdog would end it before it has ended the others."""
    uid: int | None
    groups: tuple[int, ...]
    opened: landlock.Opened | None
    """None without Landlock."""


def main() -> None:
    """Start a command and keep its family; argv holds the orders, then the command."""
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    opened = given["opened"] and landlock.Opened(**given["opened"])
    orders = Orders(**{**given, "opened": opened})
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKES)
    families.prctl(families.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != orders.judge:
        os._exit(1)
    families.adopt_orphans()
    families.hide_memory()
    keeper = os.getpid()
    child = os.fork()
    if not child:
        _become(orders, command, keeper)
    _let_go()
    # Rules that name this inode hold while it is open: the kernel may make a new one otherwise.
    os.open(f"/proc/{child}", os.O_PATH)
    code = _wait_for(child)
    families.end_below(keeper)
    os._exit(code)


def _become(orders: Orders, command: list[str], keeper: int) -> NoReturn:
    """Turn into the candidate's worker."""
    try:
        ruleset = None
        if orders.opened is not None:
            own = (*orders.opened.read, f"/proc/{os.getpid()}")
            ruleset = landlock.make_ruleset(replace(orders.opened, read=own))
        os.chdir(orders.folder)
        if orders.uid is not None:
            os.setgroups(orders.groups)
            os.setresgid(orders.uid, orders.uid, orders.uid)
            os.setresuid(orders.uid, orders.uid, orders.uid)
        else:
            with contextlib.suppress(OSError):  # an ordinary user cannot drop groups
                os.setgroups(orders.groups)
        namespaces.drop_bounding()
        namespaces.drop_capabilities()
        families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
        families.die_with_parent(keeper)  # after the uid, whose change clears this
        if ruleset is not None:
            landlock.restrict(ruleset)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKES)
        name, value = orders.mark
        os.execve(command[0], command, {**os.environ, name: value})
    except OSError as error:
        print(f"{command[0]} cannot be started in its sandbox: {error}", file=sys.stderr)
    finally:
        os._exit(1)


def _let_go() -> None:
    """Close the worker's descriptors: its channel and output must end with it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _wait_for(child: int) -> int:
    """Reap children until this one ends; return its exit code as a shell does.

    Returns 1 if the judge ended first.
    """
    while signal.sigwait(WAKES) != signal.SIGTERM:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    return code if code >= 0 else 128 - code
    return 1


if __name__ == "__main__":
    main()
