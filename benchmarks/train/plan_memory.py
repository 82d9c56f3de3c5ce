"""How well `ratchet memory` predicts a step's peak: against what torch then allocates.

    python benchmarks/train/plan_memory.py [WORKLOAD...] [--eager] [--compiled]

An eager step's plans (none, selective, the plan for a budget in the middle between the least peak
and that without checkpointing, and half of the blocks full) are predicted from the uniform steps of
another process. A compiled step's plan for that budget is searched by measuring, and checked in
another process. MemTracker's estimate of the eager step as written stands beside.
The last line is JSON: memory_error (median), memory_error_worst, and the same by kind of step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.train.memory.arm import measure, memory_arm, shape_of
from ratchet.train.memory.fit import planned
from ratchet.train.memory.plan import (
    BlockCosts,
    CompiledPlans,
    FitPlan,
    best_plan,
    costs_of,
    least_plan,
    plan_of,
)
from ratchet.train.workloads.config import StepConfig

SMALL = ("vit-tiny", "bert-tiny", "gpt2-tiny", "llama-tiny", "llama-8m", "moe-tiny")
"""Workloads that are measured unless others are named: half an hour on two busy cores."""
COMPILED = ("vit-tiny", "bert-tiny", "gpt2-tiny", "llama-tiny", "moe-tiny")
"""Those of them whose compiled step is measured, too: each of its plans is compiled."""
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


def cells(workload: str, kinds: Sequence[str]) -> Iterator[Cell]:
    """Measure each choice in one process, and what is predicted of it in another."""
    with memory_arm(workload, OPTIONS) as arm:
        written = shape_of(arm).written
        blocks = len(shape_of(arm).blocks)
        estimated = arm.call("estimate")
        eager = {
            one: step for one in "nsf" if (step := measure(arm, planned(written, one * blocks)))
        }
        costs = costs_of(eager, blocks)
        compiled = msgspec.structs.replace(written, compile_mode="default")
        found = _compiled(arm, compiled, costs) if "compiled" in kinds else []
    with memory_arm(workload, OPTIONS) as arm:
        if "eager" in kinds:
            for plan in _plans(costs):
                yield _checked(arm, workload, "eager", written, plan)
            if estimated:
                yield Cell(
                    workload=workload, kind="mem_tracker", checkpointing="none",
                    predicted_bytes=estimated, measured_bytes=eager["n"].peak_bytes,
                )  # fmt: skip
        for plan in found:
            yield _checked(arm, workload, "compiled", compiled, plan)


def _compiled(arm: ArmProcess, config: StepConfig, costs: BlockCosts) -> list[FitPlan]:
    """Search a compiled plan for the budget in the middle, as `ratchet memory --fit` does."""
    plans = CompiledPlans(costs, lambda choices: measure(arm, planned(config, choices)))
    plans.search(0)  # the smallest
    least, blocks = plans.least(), len(costs.saved)
    most = plans.steps["n" * blocks]
    assert least is not None and most is not None
    budget = (least.predicted_bytes + most.peak_bytes) // 2
    plans.search(budget)
    found = plans.best(budget) or least
    return [found] if found == least else [found, least]


def _plans(costs: BlockCosts) -> list[FitPlan]:
    """Return none, selective, the plan for the budget in the middle, and a half of each."""
    blocks = len(costs.saved)
    least = least_plan(costs).predicted_bytes
    middle = (least + costs.peak_bytes("n" * blocks)) // 2
    best = best_plan(costs, max(middle, least))
    assert best is not None
    half = "f" * (blocks // 2) + "n" * (blocks - blocks // 2)
    choices = dict.fromkeys(["n" * blocks, "s" * blocks, best.choices, half])
    return [plan_of(costs, one) for one in choices]


def _checked(arm: ArmProcess, workload: str, kind: str, config: StepConfig, plan: FitPlan) -> Cell:
    step = measure(arm, planned(config, plan.choices))
    assert step is not None
    return Cell(
        workload=workload, kind=kind, checkpointing=plan.checkpointing,
        predicted_bytes=plan.predicted_bytes, measured_bytes=step.peak_bytes,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    kinds = tuple(kind for kind in ("eager", "compiled") if getattr(asked, kind))
    found: list[Cell] = []
    given = asked.workloads
    for workload in given or SMALL:
        began_s = time.monotonic()
        try:
            both = ("eager", "compiled") if workload in (*COMPILED, *given) else ("eager",)
            for cell in cells(workload, kinds or both):
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
