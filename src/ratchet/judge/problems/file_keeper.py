"""A process that runs a problem's file under a time limit and leaves no process behind.

`problem_file` starts it with the number of a descriptor and the limit, and writes the request to
its standard input as JSON. A judge forks it from a process that holds torch. The answer goes as
JSON into the descriptor's file. A child, which alone imports torch,
runs the problem's file. The keeper becomes the parent of every process that the child leaves,
even of a daemon with its own session. It kills all of them when there is an answer, when the time
is over, and when its own parent dies.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import warnings
from dataclasses import replace
from importlib import import_module

from ratchet.base.errors import RatchetError
from ratchet.base.process import TICK_S, WorkLimit, families
from ratchet.base.process.channel import Message
from ratchet.base.serialise import document_of
from ratchet.judge.problems.problem import MORE_TIME, Problem


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
            answer_in(answer, request)
            os._exit(0)  # threads that the file started must not delay the exit
        finally:
            os._exit(1)
    limit = WorkLimit(limit_s, lambda: families.family(child, enclosed=True))
    poller = select.poll()
    poller.register(os.pidfd_open(child), select.POLLIN)
    while not poller.poll(1e3 * max(0.0, min(limit.left_s(), TICK_S))):
        if limit.left_s() <= 0:
            return f"its file did not finish within {limit_s:.3g} s of work: {MORE_TIME}"
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


# The child: it runs the file and reports the problem.

DECLARED = "PROBLEM"


def describe(request: Message) -> Problem:
    """Return the problem of a file's text; raise a RatchetError, or whatever the file raises."""
    text, name = request["text"], request["name"]
    if not request["declared"]:
        from ratchet.judge.problems.model_problem import model_problem  # takes a while

        return model_problem(
            text,
            name,
            scale=request["scale"],
            threads=request["threads"],
            within=request.get("within", ""),
        )
    import torch

    from ratchet.judge.problems.model_file import source_module
    from ratchet.judge.problems.references import with_long_sum

    torch.set_num_threads(request["threads"])
    declared = getattr(source_module(text), DECLARED, None)
    if not isinstance(declared, Problem):
        raise RatchetError(f"{DECLARED} is {type(declared).__name__}: make it a ratchet.Problem")
    problem = replace(declared, text=text)
    if not problem.cases:
        raise RatchetError("it has no cases: give it at least one")
    if not problem.tiers:
        raise RatchetError("all of its cases are hidden: give it a visible one")
    problem.load_reference()
    return with_long_sum(problem)


def answer(request: Message) -> Message:
    """Return `problem`, with its `card` if requested; or `fault`, the reason why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if "by" in request:  # a higher room's work on the file
                import torch

                torch.set_num_threads(request["threads"])
                found: Message = import_module(request["by"]).answer(request)
                return found
            problem = describe(request)
            if "entry" not in request:
                return {"problem": problem.as_json()}
            from ratchet.judge.problems.card import card_of

            card = card_of(problem, given=request["given"], entry=request["entry"])
            return {"problem": problem.as_json(), "card": document_of(card)}
    except RatchetError as error:
        return {"fault": str(error)}
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in sys.modules:
            return {"fault": _raised(error)}
        package = error.name.partition(".")[0]
        return {
            "fault": f"it imports {package!r}, which is not installed here: install it "
            "(pip install), or write the file without it"
        }
    except (Exception, SystemExit) as error:  # the process boundary: the file is untrusted code
        return {"fault": _raised(error)}


def _raised(error: BaseException) -> str:
    return f"it raises {type(error).__name__}: {' '.join(str(error).split()):.300}"


def answer_in(descriptor: int, request: Message) -> None:
    os.dup2(2, 1)
    found = answer(request)
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
