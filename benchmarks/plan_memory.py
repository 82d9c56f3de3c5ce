"""How well `ratchet memory` predicts a step's peak: against what torch then allocates.

    python benchmarks/plan_memory.py [WORKLOAD...] [--eager] [--compiled]

For each workload, eager and compiled, at no, selective and planned checkpointing. An eager step's
none and selective, and the plan, are predicted from what was measured in another process; the plan
has a budget in the middle between its least peak and that without checkpointing. A compiled step's
none, selective and full are measured to predict the plan, so only the plan is predicted there.
MemTracker's estimate of the eager step as written stands beside.
The last line is JSON: memory_error (median), memory_error_worst, and the same by kind of step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.base.errors import RatchetError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.plan.fit.arm import measure, memory_arm
from ratchet.plan.fit.costs import BlockCosts, compiled_costs, costs_of
from ratchet.plan.fit.knapsack import best_plan, least_plan
from ratchet.plan.fit.measured import MeasuredStep

SMALL = ("llama-tiny", "gpt2-tiny", "moe-tiny", "bert-tiny", "vit-tiny", "llama-8m", "vit-11m",
         "bert-17m", "gpt2-23m", "moe-42m")  # fmt: skip
OPTIONS = {"device": "cpu"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One step: what was predicted and what torch allocated."""

    workload: str
    kind: str
    checkpointing: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def cells(workload: str, kinds: tuple[str, ...]) -> Iterator[Cell]:
    """Measure each choice in one process, and what is predicted of it in another."""
    with memory_arm(workload, OPTIONS) as arm:
        blocks = len(arm.describe()["blocks"])
        estimated = arm.call("estimate")
        eager = _steps(arm, blocks, False)
        costs = costs_of(eager, blocks)
        compiled = _steps(arm, blocks, True) if "compiled" in kinds else {}
    with memory_arm(workload, OPTIONS) as arm:
        if "eager" in kinds:
            yield from _checked(arm, workload, "eager", costs, ("n", "s"))
            if estimated:
                yield Cell(
                    workload=workload, kind="mem_tracker", checkpointing="none",
                    predicted_bytes=estimated, measured_bytes=eager["n"].peak_bytes,
                )  # fmt: skip
        if compiled:
            yield from _checked(arm, workload, "compiled", compiled_costs(costs, compiled), ())


def _steps(arm: ArmProcess, blocks: int, compiled: bool) -> dict[str, MeasuredStep]:
    found = {one: measure(arm, f"plan:{one * blocks}", compiled) for one in "nsf"}
    return {one: step for one, step in found.items() if step is not None}


def _checked(
    arm: ArmProcess, workload: str, kind: str, costs: BlockCosts, uniform: tuple[str, ...]
) -> Iterator[Cell]:
    blocks = len(costs.saved)
    least = least_plan(costs).predicted_bytes
    middle = (least + costs.peak_bytes("n" * blocks)) // 2
    plan = best_plan(costs, max(middle, least))
    assert plan is not None
    half = "f" * (blocks // 2) + "n" * (blocks - blocks // 2)
    for choices in dict.fromkeys([*(one * blocks for one in uniform), plan.choices, half]):
        step = measure(arm, f"plan:{choices}", kind == "compiled")
        assert step is not None
        yield Cell(
            workload=workload, kind=kind, checkpointing=f"plan:{choices}",
            predicted_bytes=costs.peak_bytes(choices), measured_bytes=step.peak_bytes,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=SMALL)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    kinds = tuple(kind for kind in ("eager", "compiled") if getattr(asked, kind))
    found: list[Cell] = []
    for workload in asked.workloads:
        began_s = time.monotonic()
        try:
            for cell in cells(workload, kinds or ("eager", "compiled")):
                found.append(cell)
                print(
                    f"{cell.workload:<12} {cell.kind:<12} {cell.checkpointing:<22} "
                    f"predicted {cell.predicted_bytes:>13,} measured {cell.measured_bytes:>13,} "
                    f"{cell.error:+.2%}", flush=True,
                )  # fmt: skip
        except RatchetError as error:
            print(f"{workload}: {error}", flush=True)
        print(f"{workload}: {time.monotonic() - began_s:.0f} s", flush=True)
    print(json.dumps(summary(found)))


def summary(found: list[Cell]) -> dict[str, object]:
    """Return the errors' medians and worst, of the predictions and by kind."""
    ours = [abs(cell.error) for cell in found if cell.kind != "mem_tracker"]
    document: dict[str, object] = {
        "memory_error": statistics.median(ours),
        "memory_error_worst": max(ours),
        "cells": len(ours),
    }
    for kind in ("eager", "compiled", "mem_tracker"):
        errors = [abs(cell.error) for cell in found if cell.kind == kind]
        if errors:
            document[kind] = {"median": statistics.median(errors), "worst": max(errors)}
    return document


if __name__ == "__main__":
    main()
