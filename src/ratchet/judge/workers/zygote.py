"""The zygote of candidates in Python: torch is imported, no thread runs, no candidate code is here.

It stands in the sandbox, and forks for each candidate's process. A fork takes namespaces of its own
(`namespaces`), and there its PID 1 forks the worker, which confines itself as a new process does.
No candidate can reach the zygote: it is in a process namespace above theirs, its memory is hidden,
and a fork closes its channel before anything else.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from typing import Any

import torch

from ratchet.judge import processes
from ratchet.judge.channel import Channel, inherited
from ratchet.judge.workers import namespaces
from ratchet.judge.workers.candidate import serve
from ratchet.judge.workers.candidate_torch import Worker
from ratchet.judge.workers.confine import confine
from ratchet.judge.workers.forks import serve_forks
from ratchet.judge.workers.mapping import shift_heap

FIRST_FREE = 3
"""The descriptor after standard input, output and error."""


def main() -> None:
    """Try one fork, tell whether that worked, then fork for each order: argument is the channel."""
    channel = inherited(int(sys.argv[1]))
    processes.hide_memory()
    message, _ = channel.receive()
    channel.send({"unable": _hindrance(message)})
    serve_forks(channel, _run)


def _hindrance(order: dict[str, Any]) -> str:
    """Why candidates cannot be forked here; an empty text where they can."""
    with warnings.catch_warnings():
        # A BLAS library's idle threads: it ends them before a fork, and starts none after it.
        warnings.simplefilter("ignore", DeprecationWarning)
        trial = os.fork()
    if not trial:
        try:
            _run(order, [])
        except OSError:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1]) != 0:
        return "namespaces inside the sandbox are not allowed"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread runs in the process that would be forked"
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = [line for line in maps if line.split()[1][1::2] == "ws"]
    if shared:
        return "the process that would be forked shares memory"
    return ""


def _run(order: dict[str, Any], descriptors: list[int]) -> None:
    """The work of a fork: leave the zygote's namespaces, then wait for PID 1 of the new ones.

    Without descriptors all of it is tried, and no worker is started.
    """
    channel = -1
    if descriptors:
        channel, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.closerange(FIRST_FREE, channel)
    os.closerange(max(FIRST_FREE, channel + 1), os.sysconf("SC_OPEN_MAX"))
    processes.prctl(processes.PR_SET_DUMPABLE, 1)  # else its maps of users cannot be written
    namespaces.unshare()
    processes.hide_memory()
    child = os.fork()
    if not child:
        _first(order, channel)
    os.closerange(FIRST_FREE, channel + 1)
    namespaces.guard(child)


def _first(order: dict[str, Any], channel: int) -> None:
    """PID 1 of the new namespaces: its end ends everything in them."""
    processes.die_with_parent(0)  # who is outside of the namespace
    os.setsid()
    namespaces.cover(order["tmp_bytes"], order["shared_memory_bytes"])
    child = os.fork()
    if not child:
        _work(order, channel)
    os.closerange(FIRST_FREE, channel + 1)
    namespaces.drop_bounding()
    namespaces.drop_capabilities()
    namespaces.guard(child)


def _work(order: dict[str, Any], channel: int) -> None:
    """The candidate's worker, as a new process would be."""
    processes.prctl(processes.PR_SET_DUMPABLE, 1)
    namespaces.drop_bounding()
    confine(order["limits"])
    namespaces.drop_capabilities()
    processes.prctl(processes.PR_SET_DUMPABLE, 1)  # a change of the uid clears it
    shift_heap()
    torch.default_generator.seed()  # by the system's entropy, as in a new process
    torch.set_num_threads(order["threads"])
    if channel >= 0:
        serve(Channel(socket.socket(fileno=channel)), Worker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
