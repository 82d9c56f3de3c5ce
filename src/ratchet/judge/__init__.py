"""The judge: decides, alone, whether a kernel or a lever is right and faster. It fails closed.

Import its parts by name (`ratchet.judge.steps.arms`, ...). The workers of the sandbox start from
this package too, and must neither load nor see more than they need. From the top:

    court       judge and ledger together: recall, judge, keep; suites; a fleet of machines
    api         a kernel and a problem, given by path, name or object; screening
    terms       the options of a verdict; `verdict` is the answer, `revision` when it is void
    trial       one kernel's trial: compile, check, time, conclude
    targets     what is asked about GPUs that are not here
    integrity   whose work it is: thread samples, call order, outputs, libraries
    workers     programs that run in processes of their own
    sandbox     where a candidate is confined
    steps       whole training steps: arms, gradients and losses compared
    problems, kernels: what is judged

The package is also the function `ratchet.judge(kernel, problem)`, which asks the court: see
`ratchet.judge.court.calls.judge`. `ratchet.judge.screen(problem, kernels)` is `api.screen`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.base import make_callable

if TYPE_CHECKING:
    from ratchet.judge.api import screen

__all__ = ["screen"]

make_callable(__name__, "ratchet.judge.court.calls:judge")


def __getattr__(name: str) -> object:
    if name != "screen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ratchet.judge import api

    return api.screen
