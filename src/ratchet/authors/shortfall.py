"""Why a run screened nothing, and which budget would do."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from ratchet.authors.search.confirmation import kept_s

if TYPE_CHECKING:
    from ratchet.authors.run import ProblemRun

SCREENING_S: Final = 20.0
"""Limit of a first screening, if none was tried."""
STEP_S: Final = 30
"""Budgets are told in steps of half a minute."""


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
