"""Run a step on a GPU by each lever that only GPUs have, and with the library's kernels in it.

    python benchmarks/gpu/gpu_levers.py [--workload llama-8m] [--device cuda] [--steps 20]

Every way to run the step starts in a process of its own and compiles, some at a time; then those
are timed one after another, the ones that must run first. One JSON object a line for each:
milliseconds a step, peak memory, the loss after the same steps, calls that fell back from a kernel
to plain torch, or the reason why it did not run.
The exit code is 1 if one that must run did not, if a loss is off by more than 2 %, or if a kernel
served nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.train.recipe import Candidate
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.turn.arm import FACTORY
from ratchet.train.workloads.config import StepConfig

USUAL = StepConfig(compile_mode="default", precision="bf16_autocast", optimizer="fused")
IN_GRAPHS = ("attention", "rms_norm", "rope", "gated_activation", "linear_cross_entropy")
WAYS: dict[str, dict[str, Any]] = {
    "compile": {},
    "kernels": {"kernels": tuple(sorted(IN_GRAPHS)), "optimizer": "kernel"},
    "kernels, bf16 weights": {
        "kernels": tuple(sorted(IN_GRAPHS)),
        "optimizer": "kernel",
        "precision": "bf16_master",
    },
    "replayed graphs": {"compile_mode": "reduce-overhead"},
    "flash attention": {"attention": "flash"},
    "efficient attention": {"attention": "efficient"},
    "cuDNN attention": {"attention": "cudnn"},
    "fp8 products": {"products": "fp8"},
    "expandable segments": {"allocator": "expandable"},
}
MUST_RUN = ("compile", "replayed graphs", "kernels", "kernels, bf16 weights")
AT_ONCE = max(2, len(os.sched_getaffinity(0)) // 3)
"""Ways that start and compile beside each other: each compiles with several processes."""
WARM = 3
"""Steps of each before it is timed; the first compiles."""
LOSS = 0.02
"""Largest relative difference of a loss from that of `compile`."""


def candidate_of(changes: dict[str, Any], device: Device) -> Candidate:
    """Return one way to run the step, with the library's kernels as if they were proven."""
    config = msgspec.convert({**msgspec.to_builtins(USUAL), **changes}, StepConfig)
    names = [*config.kernels, *(("adamw",) if config.optimizer == "kernel" else ())]
    kernels = tuple(
        InstalledKernel(library=name, entry=one.entry, hash=one.hash, isa=device.target)
        for name in names
        for one in LIBRARY[name].kernels(device.target)
    )
    return Candidate(title="", config=config, kernels=kernels)


def started(name: str, workload: str, device: Device) -> ArmProcess:
    """Start the process of one way."""
    candidate = candidate_of(WAYS[name], device)
    arm = ArmProcess(
        ArmSpec(
            name=name,
            factory=FACTORY,
            arguments=candidate.arguments(workload, {"device": device.kind}),
            environment=candidate.config.variables(),
        )
    )
    arm.begin_start()
    return arm


def row_of(name: str, arm: ArmProcess, steps: int) -> dict[str, Any]:
    """Time one way, whose process has run a few steps; the row says why if it cannot."""
    try:
        times_s = [arm.run(1).wall_time_s for _ in range(steps)]
        told = arm.describe()
    except RatchetError as error:
        return {"way": name, "ran": False, "reason": str(error)[:300]}
    return {
        "way": name,
        "ran": True,
        "step_ms": round(1e3 * statistics.median(times_s), 3),
        "peak_mb": told["peak_memory_bytes"] >> 20,
        "loss": told["loss"],
        "installed": sum(told["installed"].values()),
        "fallbacks": told["fallbacks"],
    }


def tried(do: Callable[[], object]) -> str:
    """Do it; return why it cannot be done, "" if it was."""
    try:
        do()
    except RatchetError as error:
        return str(error)[:300]
    return ""


def timed(arms: dict[str, ArmProcess], steps: int) -> list[dict[str, Any]]:
    """Let these compile at the same time, then time one after another; print and return rows."""
    rows = []
    faults = {
        name: tried(arm.finish_start) or tried(partial(arm.begin_run, WARM))
        for name, arm in arms.items()
    }
    faults = {name: why or tried(arms[name].finish_run) for name, why in faults.items()}
    for name, arm in arms.items():
        if faults[name]:
            rows.append({"way": name, "ran": False, "reason": faults[name]})
        else:
            rows.append(row_of(name, arm, steps))
        print(json.dumps(rows[-1]), flush=True)
        arm.close()
    return rows


def main() -> int:
    """Time each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="llama-8m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=[*WAYS], default=[*WAYS])
    asked = parser.parse_args()
    device = probe(asked.device)
    rows: list[dict[str, Any]] = []
    for first in range(0, len(asked.only), AT_ONCE):
        names = asked.only[first : first + AT_ONCE]
        arms = {name: started(name, asked.workload, device) for name in names}
        try:
            rows += timed(arms, asked.steps)
        finally:
            for arm in arms.values():
                arm.close()
    return int(any(map(is_wrong, rows, [rows[0].get("loss")] * len(rows))))


def is_wrong(row: dict[str, Any], usual: float | None) -> bool:
    """Return True for a way that had to run and did not, or that computes something else."""
    if not row["ran"]:
        return row["way"] in MUST_RUN
    if usual is None or not math.isclose(row["loss"], usual, rel_tol=LOSS):
        return True
    return row["way"].startswith("kernels") and not row["installed"]


if __name__ == "__main__":
    sys.exit(main())
