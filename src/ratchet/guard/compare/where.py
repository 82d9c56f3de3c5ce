"""The place of a slowdown: the difference of one trace of each side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.base import scratch
from ratchet.base.errors import RatchetError
from ratchet.guard.compare.plan import LEAST_ROUNDS
from ratchet.guard.compare.sides import WARMUP, WorkloadSide
from ratchet.judge.steps.arms import ArmProcess
from ratchet.trace.analysis.analyse import analyse
from ratchet.trace.compare.diff import diff
from ratchet.trace.read.file import read

MOST_ROWS = 10
STEPS = LEAST_ROUNDS


def traces_difference(a: WorkloadSide, b: WorkloadSide) -> dict[str, Any]:
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
            "baseline_s": row.before / STEPS / 1e9,
            "new_s": row.after / STEPS / 1e9,
            "modules": row.modules,
        }
        for row in found.groups
        if row.change > 0
    ]
    return {
        "steps": STEPS,
        "window_change_s": found.window_change / STEPS / 1e9,
        "slower": rows[:MOST_ROWS],
    }


def _record(side: WorkloadSide, folder: Path) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    with ArmProcess(side.spec(side.title)) as arm:
        arm.run(WARMUP)
        arm.call("profile", path=str(path), steps=STEPS)
    return path
