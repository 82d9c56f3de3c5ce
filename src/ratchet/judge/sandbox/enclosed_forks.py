"""Forks of a zygote in the sandbox, each in namespaces of its own. Imports no torch.

A fork enters new namespaces (`namespaces`), where its PID 1 forks the worker, which confines itself
as a new process does. No candidate can reach the zygote: it lives in a process namespace above
theirs, its memory is hidden, and a fork first of all closes the zygote's channel.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from ratchet.base.process import families
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.sandbox import namespaces
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.mapping import shift_heap
from ratchet.judge.sandbox.serving import serve_forks

FIRST_FREE = 3
"""The descriptor after standard input, output and error."""
Work = Callable[[Message, int], None]
"""Does a worker's work, given its order and its channel's descriptor: -1 for a trial."""


def serve_enclosed(work: Work, prepare: Callable[[Message], None] | None = None) -> NoReturn:
    """Try one fork, report whether it worked, then fork for each order; argv holds the channel.

    `prepare` does first what all forks need, such as imports.
    """
    channel = inherited(int(sys.argv[1]))
    families.hide_memory()
    message, _ = channel.receive()
    if prepare is not None:
        prepare(message)
    channel.send({"unable": _hindrance(message, work)})
    serve_forks(channel, lambda order, descriptors: _run(order, descriptors, work))


def _hindrance(order: Message, work: Work) -> str:
    """Return why candidates cannot be forked here; "" if they can."""
    trial = quiet_fork()
    if not trial:
        try:
            _run(order, [], work)
        except OSError:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1]) != 0:
        return "a fork cannot enter namespaces inside the sandbox, or open the GPU there"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread runs in the process that would be forked"
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = [line for line in maps if line.split()[1][1::2] == "ws"]
    if shared:
        return "the process that would be forked shares memory"
    return ""


def quiet_fork() -> int:
    """Fork without Python's warning of threads.

    A BLAS library ends its idle threads before a fork, and starts none after it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run(order: Message, descriptors: list[int], work: Work) -> None:
    """Leave the zygote's namespaces, start PID 1 of the new ones, and wait for it.

    Without descriptors this is a trial that starts no worker.
    """
    channel = -1
    if descriptors:
        channel, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.closerange(FIRST_FREE, channel)
    os.closerange(max(FIRST_FREE, channel + 1), os.sysconf("SC_OPEN_MAX"))
    families.prctl(families.PR_SET_DUMPABLE, 1)  # else its uid map cannot be written
    namespaces.unshare()
    families.hide_memory()
    child = os.fork()
    if not child:
        _first(order, channel, work)
    os.closerange(FIRST_FREE, channel + 1)
    namespaces.guard(child)


def _first(order: Message, channel: int, work: Work) -> None:
    """Run as PID 1 of the new namespaces: its end ends everything in them."""
    families.die_with_parent(0)  # the parent is outside of the namespace
    os.setsid()
    namespaces.cover(order["tmp_bytes"], order["shared_memory_bytes"])
    child = os.fork()
    if not child:
        _confined(order, channel, work)
    os.closerange(FIRST_FREE, channel + 1)
    namespaces.drop_bounding()
    namespaces.drop_capabilities()
    namespaces.guard(child)


def _confined(order: Message, channel: int, work: Work) -> NoReturn:
    """Run the candidate's worker, confined like a new process."""
    families.prctl(families.PR_SET_DUMPABLE, 1)
    namespaces.drop_bounding()
    confine(order["limits"])
    namespaces.drop_capabilities()
    families.prctl(families.PR_SET_DUMPABLE, 1)  # a change of the uid clears it
    shift_heap()
    work(order, channel)
    os._exit(0)
