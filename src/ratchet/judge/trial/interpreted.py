"""Triton kernels on a machine without a GPU: judged in Triton's interpreter, and never timed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from ratchet.judge.decided import Decided
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem

LOADED = """\
from ratchet.judge.workers.candidate.triton_source import load_interpreted

{entry} = load_interpreted({source!r}, {entry!r})
"""
REASON = "right on every case in Triton's interpreter; its speed was not measured: there is no GPU"


def interpreted(kernel: Kernel) -> Kernel | Decided:
    """Return the kernel as one in torch, whose launches Triton's interpreter carries out."""
    if importlib.util.find_spec("triton") is None:
        return Decided("unmeasured", "triton is not installed: pip install triton==3.7.1")
    source = LOADED.format(entry=kernel.entry, source=kernel.source)
    return replace(kernel, language="torch", source=source)


def small_cases(problem: Problem) -> Problem:
    """The problem at tier `ci` where it has such cases: the interpreter is a thousand times slower.

    A problem without them is kept whole.
    """
    has_small = any(case.tier == "ci" and not case.hidden for case in problem.cases)
    return problem.at("ci") if has_small else problem


def without_blame(decided: Decided) -> Decided:
    """Leave a kernel unmeasured by what only the interpreter cannot do, or not in time."""
    beyond = "NotImplementedError" in decided.reason
    if decided.status == "timed_out" or (decided.status == "crashed" and beyond):
        reason = f"in Triton's interpreter: {decided.reason}"
        return replace(decided, status="unmeasured", reason=reason)
    return decided
