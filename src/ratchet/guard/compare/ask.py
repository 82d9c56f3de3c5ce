"""`compare` as one call: a request in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ratchet.guard.compare.instructions import count_both
from ratchet.guard.compare.keep import compare_and_keep
from ratchet.guard.compare.request import CompareRequest, Sides
from ratchet.guard.compare.run import CompareOutcome, CompareSettings
from ratchet.guard.compare.sides import CommandContest, WorkloadContest
from ratchet.guard.compare.where import traces_difference


def compare_sides(
    request: CompareRequest,
    sides: Sides,
    *,
    ledger: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CompareOutcome:
    """Compare two sides as a request says, and keep the samples in the ledger.

    If the new one of two workloads is slower, the difference of their traces is added.
    """
    settings = CompareSettings(
        budget_s=request.budget_s, allowed=request.allowed, seed=request.seed
    )
    contest: CommandContest | WorkloadContest
    if sides.commands:
        contest = CommandContest(sides.a, sides.b, printed=request.printed, higher=request.higher)
    else:
        contest = WorkloadContest(sides.a, sides.b, seed=request.seed)

    def add(outcome: CompareOutcome) -> CompareOutcome:
        details: dict[str, Any] = {}
        if isinstance(contest, WorkloadContest):
            details["batches"] = _batches(contest)
            if outcome.exit_code == 1:
                on_progress("recording a trace of each side")
                details["traces"] = traces_difference(*contest.sides)
        if request.instructions:
            on_progress("counting instructions")
            details["instructions"] = count_both(sides.a, sides.b)
        return replace(outcome, details=details, warnings=sides.warnings)

    return compare_and_keep(
        contest,
        settings,
        asked=request.as_json(),
        device=request.device if not sides.commands else "cpu",
        ledger=ledger,
        on_progress=on_progress,
        add=add,
    )


def _batches(contest: WorkloadContest) -> list[dict[str, Any]]:
    """Return the size of a batch of each side, where both are known."""
    said = [contest.descriptions.get(name, {}) for name in ("a", "b")]
    return [{"per_batch": one.get("per_batch"), "unit": one.get("unit")} for one in said]
