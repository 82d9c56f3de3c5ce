"""`compare` as one call: a request in, an outcome out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ratchet.devices.probe import probe
from ratchet.guard.compare.instructions import count_both
from ratchet.guard.compare.request import CompareRequest, Sides
from ratchet.guard.compare.run import CompareOutcome, CompareSettings, compare_contest
from ratchet.guard.compare.sides import CommandContest, WorkloadContest
from ratchet.guard.compare.where import traces_difference
from ratchet.ledger import Ledger

COMMAND = "compare"


def compare_sides(
    request: CompareRequest,
    sides: Sides,
    *,
    ledger: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CompareOutcome:
    """Compare two sides as a request says; keep every sample in the ledger, also if it fails.

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
    with Ledger.open(ledger) as book:
        here = book.here(probe("cpu" if sides.commands else request.device))
        title = " : ".join(contest.titles)
        turn = book.start_turn(title, request.as_json(), fingerprint=here, command=COMMAND)
        with book.failing(turn):
            outcome = compare_contest(
                contest,
                settings,
                on_progress,
                lambda samples: book.record_measurements(turn, samples, purpose=COMMAND),
            )
            readings = {"readings": outcome.readings.as_json()}
            book.remember("compare_readings", turn, readings, fingerprint=here)
            details: dict[str, Any] = {}
            if isinstance(contest, WorkloadContest):
                details["batches"] = _batches(contest)
                if outcome.exit_code == 1:
                    on_progress("recording a trace of each side")
                    details["traces"] = traces_difference(*contest.sides)
            if request.instructions:
                on_progress("counting instructions")
                details["instructions"] = count_both(sides.a, sides.b)
            outcome = replace(outcome, details=details, warnings=sides.warnings, turn=turn)
        book.finish_turn(turn, outcome.as_json())
    return outcome


def _batches(contest: WorkloadContest) -> list[dict[str, Any]]:
    """Return the size of a batch of each side, where both are known."""
    said = [contest.descriptions.get(name, {}) for name in ("a", "b")]
    return [{"per_batch": one.get("per_batch"), "unit": one.get("unit")} for one in said]
