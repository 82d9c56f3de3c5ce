"""The result of a writing run, at any moment of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ratchet.judge.court.court import Court
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel
from ratchet.write.author import RIGHT, Answer, ancestry
from ratchet.write.effort import kept_s, planned_verdicts
from ratchet.write.problem_run import ProblemRun
from ratchet.write.roster import Roster
from ratchet.write.writing_result import (
    AuthorRow,
    Stopped,
    WritingRequest,
    WritingResult,
    WrittenKernel,
)

SCREENING_S: Final = 20.0  # Limit of a first screening, if none was tried
STEP_S: Final = 30  # Budgets are told in steps of half a minute


def why_nothing(run: ProblemRun) -> str:
    """Return in a line why a run that is over screened no kernel; empty if it screened one."""
    if run.screened or run.stopped == "interrupted":
        return ""
    if run.stopped != "budget":
        reasons = "; ".join(f"{name}: {why}" for name, why in run.dropped.items())
        return f"no kernel was screened: nobody proposed one{f' ({reasons})' if reasons else ''}"
    budget_s, compiled = run.request.budget_s, run.request.against_compile
    parts = [f"{run.before_s:.0f} s went into starting and reading the problem"]
    parts += [f"{time_s:.0f} s into {name}" for name, time_s in run.spent_by.items() if time_s >= 1]
    needed_s = run.before_s + max(SCREENING_S, 2 * sum(run.spent_by.values()))
    kept = kept_s(budget_s, against_compile=compiled)
    return (
        f"no kernel was screened within the budget of {budget_s:.0f} s: {', '.join(parts)}, and "
        f"{kept:.0f} s are kept for the verdict; --budget "
        f"{enough_s(needed_s, against_compile=compiled)}s should do"
    )


def enough_s(needed_s: float, *, against_compile: bool) -> int:
    """Return the least budget whose search has so many seconds."""
    return next(
        budget_s
        for budget_s in itertools.count(STEP_S, STEP_S)
        if budget_s - kept_s(budget_s, against_compile=against_compile) >= needed_s
    )


SHOWN: Final = 12
"""Kernels, besides the best one and its ancestors, whose source the result carries."""


@dataclass(slots=True)
class Writing:
    """One problem's run, with all that its result tells."""

    problem: Problem
    request: WritingRequest
    court: Court
    command: str
    run_id: str = ""
    started_at: str = ""
    floor_s: float | None = None
    roster: Roster | None = None
    work: ProblemRun | None = None
    recalled: JudgedKernel | None = None


def result_of(state: Writing, *, running: bool) -> WritingResult:
    work, request = state.work, state.request
    answers = [] if work is None else work.progress.answers
    verdicts = [state.recalled] if state.recalled else [] if work is None else work.verdicts
    best = _best(answers, verdicts)
    left = None if running or best is not None else unjudged(answers)
    why = "" if work is None or running or state.recalled else why_nothing(work)
    if left is not None:
        more = (
            "continue with --resume" if work and work.stopped == "interrupted" else "raise --budget"
        )
        why = (
            "the run ended before a verdict on a kernel that was right when it was screened: judge "
            f"the one that was screened best with `ratchet judge`, or {more}"
        )
    device, versions = state.court.judged_on(request.judged_device)
    stopped: Stopped | None = (
        "recalled" if state.recalled else None if work is None else work.stopped
    )
    return WritingResult(
        run=state.run_id,
        problem=state.problem.name,
        problem_hash=state.problem.hash,
        running=running,
        status=best.status if best else "not_judged" if left else "none",
        best=best,
        unjudged=left.kernel_hash if left else "",
        stopped=stopped,
        budget_s=request.budget_s,
        spent_s=0.0 if work is None else work.spent_s,
        screened=0 if work is None else work.screened,
        judged=len(verdicts),
        planned_verdicts=planned_verdicts(request.budget_s),
        floor_s=state.floor_s,
        authors=_author_rows(state, answers),
        rows=tuple(answers),
        sources=_sources(answers, best.kernel_hash if best else left.kernel_hash if left else ""),
        device=device,
        versions=versions,
        command=state.command,
        started_at=state.started_at,
        notes=(*([why] if why else []), *state.court.fleet.notes),
        static=next((one.verdict.static for one in verdicts if one.verdict.static), None),
    )


def _best(answers: Sequence[Answer], verdicts: Sequence[JudgedKernel]) -> WrittenKernel | None:
    """Return the kernel with the best verdict: a proven one, else the first that is right."""
    order = {"proven": 0, "correct": 1}
    right = [one for one in verdicts if one.verdict.status in order]
    if not right:
        return None
    judged = min(right, key=lambda one: order[one.verdict.status])
    kernel = judged.kernel
    authors = {one.kernel_hash: one.author for one in answers}
    return WrittenKernel(
        kernel_hash=kernel.hash,
        name=kernel.name,
        language=kernel.language,
        entry=kernel.entry,
        author=authors.get(kernel.hash, "ledger"),
        source=kernel.source,
        status=judged.verdict.status,
        reason=judged.verdict.reason,
        verdict=msgspec.structs.replace(judged.verdict, samples=[], static=None),
        judged_at=judged.judged_at,
        recalled=judged.recalled,
    )


def _author_rows(state: Writing, answers: Sequence[Answer]) -> tuple[AuthorRow, ...]:
    found: dict[str, dict[str, bool]] = {}
    for one in answers:
        own = found.setdefault(one.author, {})
        own[one.kernel_hash] = one.status in RIGHT
    notes = {} if state.roster is None else dict(state.roster.absent)
    if state.work is not None and state.work.stopped == "budget":
        unasked = (one.name for one in state.work.authors if one.name not in state.work.spent_by)
        notes |= {name: "the budget ended before its turn" for name in unasked}
    notes |= {} if state.work is None else state.work.dropped
    models = {name.partition(":")[0] for name in [*found, *notes] if ":" in name}
    asked = [name for name in state.request.authors if name not in models]
    names = list(dict.fromkeys([*asked, *found, *notes]))
    return tuple(
        AuthorRow(
            name=name,
            proposals=len(found.get(name, {})),
            right=sum(found.get(name, {}).values()),
            note=notes.get(name, ""),
        )
        for name in names
    )


def unjudged(answers: Sequence[Answer]) -> Answer | None:
    """Return the kernel that was screened best of those that are right and have no verdict."""
    newest = {one.kernel_hash: one for one in answers}.values()
    right = [one for one in newest if one.stage == "screened" and one.status in RIGHT]
    right.sort(key=lambda one: (-(one.ratio or 0.0), one.static_rank or (math.inf,)))
    return right[0] if right else None


def _sources(answers: Sequence[Answer], best: str) -> dict[str, str]:
    """Return the sources of the best kernel, its ancestors, and some that were screened best."""
    ancestors = ancestry(answers, best) if best else []
    right = [one for one in answers if one.status in RIGHT and one.ratio is not None]
    right.sort(key=lambda one: one.ratio or 0.0, reverse=True)
    return {one.kernel_hash: one.kernel.source for one in (*ancestors, *right[:SHOWN])}


def failed_result(
    problem: Problem, request: WritingRequest, why: str, *, command: str
) -> WritingResult:
    """Return the result on a problem that no kernel can be written for, with the reason."""
    return WritingResult(
        problem=problem.name,
        problem_hash=problem.hash,
        budget_s=request.budget_s,
        planned_verdicts=planned_verdicts(request.budget_s),
        command=command,
        notes=(why,),
    )
