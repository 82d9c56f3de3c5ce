"""A process that runs a problem's file under a time limit and leaves no process behind.

`problem_file` starts it with the number of a descriptor and the limit, and writes the request to
its standard input as JSON. A judge forks it from a process that holds torch. The answer goes as
JSON into the descriptor's file. The problem's file itself runs in a child, `file_worker`. The
keeper becomes the parent of every process that the child leaves, even of a daemon with its own
session. It kills all of them when there is an answer, when the time is over, and when its own
parent dies.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

from ratchet.base.process import TICK_S, WorkLimit, families
from ratchet.base.process.channel import Message


def main() -> None:
    """Run with the answer's descriptor, the limit in seconds of work and the parent's pid."""
    answer, limit_s, parent = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    keep(answer, limit_s, json.load(sys.stdin), parent)


def keep(answer: int, limit_s: float, request: Message, parent: int) -> None:
    """Answer the request in the file of the descriptor `answer`, as a child of `parent`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    families.adopt_orphans()
    families.prctl(families.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        try:
            fault = _run(answer, limit_s, request)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_children()
        if fault is not None:
            _write(answer, {"fault": fault})


def _run(answer: int, limit_s: float, request: Message) -> str | None:
    """Run the worker to its end; return the reason if there is no answer."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            from ratchet.judge.problems import file_worker

            file_worker.main(answer, request)
            os._exit(0)  # threads that the file started must not delay the exit
        finally:
            os._exit(1)
    limit = WorkLimit(limit_s, lambda: families.family(child, enclosed=True))
    poller = select.poll()
    poller.register(os.pidfd_open(child), select.POLLIN)
    while not poller.poll(1e3 * max(0.0, min(limit.left_s(), TICK_S))):
        if limit.left_s() <= 0:
            return f"its file did not finish within {limit_s:.3g} s of work: raise the time limit"
    _, status = os.waitpid(child, 0)
    if os.fstat(answer).st_size:
        return None
    return f"its process died (exit code {os.waitstatus_to_exitcode(status)})"  # -9 means SIGKILL


def _write(answer: int, found: Message) -> None:
    os.ftruncate(answer, 0)
    os.pwrite(answer, json.dumps(found).encode(), 0)


def end_children() -> None:
    """End this process's descendants until none is left; it inherits the orphans."""
    while True:
        families.end_below(os.getpid())
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
