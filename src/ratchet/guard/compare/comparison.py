"""`compare` as one call: a request in, an outcome out.

Two workloads get the difference of their traces if the new one is slower, and both kinds of sides
their instruction counts if they are asked for.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.base import scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.measure.contest import (
    LEAST_ROUNDS,
    CompareOutcome,
    CompareSettings,
    compare_contest,
)
from ratchet.guard.compare.commands import CommandContest, CommandSide, run_command
from ratchet.guard.compare.request import CompareRequest, Sides
from ratchet.guard.compare.sides import WARMUP, WorkloadContest, WorkloadSide
from ratchet.judge.steps.arms import ArmProcess
from ratchet.trace.analysis import analyse
from ratchet.trace.compare import diff
from ratchet.trace.read import read

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
        turn = book.start_turn(title, request.kept(), fingerprint=here, command=COMMAND)
        with book.failing(turn):
            outcome = compare_contest(
                contest,
                settings,
                on_progress,
                lambda samples: book.record_measurements(turn, samples, purpose=COMMAND),
            )
            readings = {"readings": outcome.readings.as_json()}
            book.remember("compare_readings", turn, readings, fingerprint=here)
            details: dict[str, object] = {}
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


def _batches(contest: WorkloadContest) -> list[dict[str, object]]:
    """Return the size of a batch of each side, where both are known."""
    said = [contest.descriptions.get(name, {}) for name in ("a", "b")]
    return [{"per_batch": one.get("per_batch"), "unit": one.get("unit")} for one in said]


MOST_ROWS = 10
TRACED_STEPS = LEAST_ROUNDS


def traces_difference(a: WorkloadSide, b: WorkloadSide) -> dict[str, object]:
    """Profile a few steps of each side; return the rows that changed most, in seconds a step.

    The answer stands without it, so a failure is told in `failed` and not raised.
    """
    with scratch.folder("traces") as folder:
        try:
            found = diff(*(analyse(read(_record(side, folder))) for side in (a, b)))
        except RatchetError as error:
            return {"failed": str(error)}
    rows = [
        {
            "module": row.module,
            "op": row.op,
            "baseline_s": row.before / TRACED_STEPS / 1e9,
            "new_s": row.after / TRACED_STEPS / 1e9,
            "modules": row.modules,
        }
        for row in found.groups
        if row.change > 0
    ]
    return {
        "steps": TRACED_STEPS,
        "window_change_s": found.window_change / TRACED_STEPS / 1e9,
        "slower": rows[:MOST_ROWS],
    }


def _record(side: WorkloadSide, folder: Path) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    with ArmProcess(side.spec(side.title)) as arm:
        arm.run(WARMUP)
        arm.call("profile", path=str(path), steps=TRACED_STEPS)
    return path


COUNTED_STEPS = 2
LIMIT_S = 3600.0
TOTALS = re.compile(r"^(?:summary|totals):\s*(\d+)", re.MULTILINE)


def count_both(a: object, b: object) -> dict[str, object]:
    """Count the instructions of two sides, of two commands or of a few steps of two workloads."""
    counts = [_count(_command(side)) for side in (a, b)]
    whole = isinstance(a, CommandSide)
    return {
        "baseline": counts[0],
        "new": counts[1],
        "ratio": counts[0] / counts[1] if counts[1] else None,
        "of": "the command and its children" if whole else f"{COUNTED_STEPS} steps",
    }


def _command(side: Any) -> CommandSide:
    if isinstance(side, CommandSide):
        return side
    from ratchet.train.workloads.run_steps import steps_command

    words = steps_command(side.workload, COUNTED_STEPS, side.options)
    words[0] = side.python or sys.executable
    return CommandSide(
        title=side.title, command=shlex.join(words), folder=Path.cwd(), environment=side.environment
    )


def _count(side: CommandSide) -> int:
    """Return the instructions of a command with all of its children."""
    with scratch.folder("callgrind") as folder:
        tool = [
            "valgrind", "--tool=callgrind", "--trace-children=yes", "--quiet",
            f"--callgrind-out-file={folder}/%p.out",
        ]  # fmt: skip
        counted = f"{shlex.join(tool)} /bin/sh -c {shlex.quote(side.command)}"
        run_command(replace(side, command=counted), printed=False, limit_s=LIMIT_S)
        files = list(folder.glob("*.out*"))
        return sum(_total(path.read_text(errors="replace")) for path in files)


def _total(text: str) -> int:
    found = TOTALS.findall(text)
    return int(found[-1]) if found else 0
