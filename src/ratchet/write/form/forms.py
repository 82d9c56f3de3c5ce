"""A problem's forms: one for each pattern of ranks, dtypes and scalars among its visible cases."""

from __future__ import annotations

from typing import Final

from ratchet.base.errors import KernelError
from ratchet.judge.problems.case import Case
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import described
from ratchet.write.form.form import LoopForm, UnsupportedOp
from ratchet.write.form.form_json import form_from_json
from ratchet.write.form.lower import lower

MOST_FORMS: Final = 4
TRACING_LIMIT_S: Final = 120.0
WORKER: Final = "ratchet.write.form.form_worker"
MOST_KEPT: Final = 8
_LATEST: Final[dict[str, tuple[LoopForm, ...]]] = {}
"""By the problem's hash: who asks whether a problem is covered then asks for its space."""


def forms_of(problem: Problem) -> tuple[LoopForm, ...]:
    """Return a form for each pattern of the visible cases, timed ones first.

    The reference of a problem's file is traced in a process of its own.

    Raises:
        UnsupportedOp: the reference has an op outside of the list.
        KernelError: the file does not run, or not in time.
    """
    if problem.hash not in _LATEST:
        if len(_LATEST) >= MOST_KEPT:
            del _LATEST[next(iter(_LATEST))]
        _LATEST[problem.hash] = _forms_of(problem)
    return _LATEST[problem.hash]


def _forms_of(problem: Problem) -> tuple[LoopForm, ...]:
    if not problem.text:
        return traced_forms(problem)
    request = {"by": WORKER, "problem": problem.as_json(), "threads": 1}
    found = described(request, TRACING_LIMIT_S)
    if "op" in found:
        raise UnsupportedOp(str(found["op"]), str(found.get("why", "")))
    if "forms" not in found:
        raise KernelError(f"problem {problem.name!r} cannot be traced: {found.get('fault')}")
    return tuple(form_from_json(one) for one in found["forms"])


def traced_forms(problem: Problem) -> tuple[LoopForm, ...]:
    """Return the same, traced in this process."""
    visible = sorted(
        (one for one in problem.cases if not one.hidden), key=lambda one: not one.timed
    )
    patterns: dict[object, Case] = {}
    for case in visible:
        patterns.setdefault(_pattern(case), case)
    return tuple(lower(problem, case) for case in list(patterns.values())[:MOST_FORMS])


def _pattern(case: Case) -> object:
    """Return what a form is made for: dtypes, ranks, sizes of 0 or 1, and scalars."""
    tensors = tuple(
        (spec.dtype, tuple(size if size < 2 else -1 for size in spec.shape), spec.in_place)
        for spec in case.inputs
    )
    return tensors, case.scalars
