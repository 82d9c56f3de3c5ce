"""Triton kernels on a machine without a GPU: judged in Triton's interpreter, and never timed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import replace

from ratchet.judge.candidate_process import Decided
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem

LOADED = """\
from ratchet.judge.workers.candidate_triton import load_interpreted

{entry} = load_interpreted({source!r}, {entry!r})
"""
REASON = "right on every case in Triton's interpreter; its speed was not measured: there is no GPU"


def interpreted(kernel: Kernel) -> Kernel:
    """The same kernel as one in torch, whose launches Triton's interpreter carries out.

    Decided where Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise Decided("unmeasured", "triton is not installed: pip install triton==3.7.1")
    source = LOADED.format(entry=kernel.entry, source=kernel.source)
    return replace(kernel, language="torch", source=source)


def small_cases(problem: Problem) -> Problem:
    """The problem at tier `ci` where it has such cases: the interpreter is a thousand times slower.

    A problem without them is kept whole.
    """
    has_small = any(case.tier == "ci" and not case.hidden for case in problem.cases)
    return problem.at("ci") if has_small else problem


@contextlib.contextmanager
def without_blame() -> Iterator[None]:
    """What only the interpreter cannot do, or not in time, leaves a kernel unmeasured."""
    try:
        yield
    except Decided as decided:
        beyond = "NotImplementedError" in decided.reason
        if decided.status == "timed_out" or (decided.status == "crashed" and beyond):
            raise Decided("unmeasured", f"in Triton's interpreter: {decided.reason}") from decided
        raise
