"""Read the judge's clock on a GPU: the same kernel in both arms, and one with 7 passes of 8.

    python benchmarks/gpu/gpu_clock.py [--verdicts 2] [--device cuda] [--time-limit 60]

Three problems of about 20, 100 and 200 us a call on an H100: one activation, and a chain of eight
multiplications in two sizes. `same` is the reference itself, which must read 1.00. `shorter` has a
pass less of the chain, so its own work is 8/7 as fast; outputs are copied inside the clock in both
arms, which makes that 9/8. One JSON object a line for each verdict, the last for all: by problem
and kernel the ratios, the widest interval, the way there and back, and seconds a verdict. The exit
code is 1 if `same` is ever proven, or `shorter` is not each time.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

COLUMNS, PASSES = 1024, 8
SIZES = {"activation": 4096, "short chain": 4096, "chain": 8192}
CHAIN = """
import torch

def chain(x, s):
    for factor in {factors}:
        x = x * factor
    return (x,)
"""
ACTIVATION = "import torch\ndef activation(x, s):\n    return (s[0] * torch.relu(x),)\n"


def activation(x: Tensor, s: tuple[float, ...]) -> tuple[Tensor, ...]:
    """The reference of 20 us."""
    return (s[0] * torch.relu(x),)


def chain(x: Tensor, s: tuple[float, ...]) -> tuple[Tensor, ...]:
    """The reference of eight passes; doubling and halving are exact in any order."""
    for factor in factors(PASSES):
        x = x * factor
    return (x,)


def factors(passes: int) -> list[float]:
    """Factors whose product is 256, so that fewer passes give the same bits."""
    return [2.0] * (passes - 1) + [2.0 ** (PASSES - passes + 1)]


def problem_of(name: str) -> Problem:
    """Return one problem."""
    large = TensorSpec(shape=(SIZES[name], COLUMNS), dtype="float32")
    small = TensorSpec(shape=(5, 7), dtype="float32", layout="strided")
    function = name.rpartition(" ")[2]
    cases = (
        Case(name="timed", inputs=(large,), scalars=(1.5,), timed=True),
        Case(name="small", inputs=(small,), scalars=(1.5,), hidden=True),
    )
    return Problem(name=function, reference=f"gpu_clock:{function}", cases=cases)


def kernels_of(name: str) -> dict[str, str]:
    """Return the sources that are judged, by name."""
    if name == "activation":
        return {"same": ACTIVATION}
    passes = {"same": PASSES, "shorter": PASSES - 1}
    return {kernel: CHAIN.format(factors=factors(count)) for kernel, count in passes.items()}


def row_of(problem: str, kernel: str, verdict: Verdict, took_s: float) -> dict[str, Any]:
    """Return a verdict as a line."""
    ratio = verdict.speedup.vs_reference
    told = {one.check: one.detail for one in verdict.evidence}
    return {
        "problem": problem,
        "kernel": kernel,
        "status": verdict.status,
        "ratio": None if ratio is None else [ratio.low, ratio.ratio, ratio.high],
        "verdict_s": round(took_s, 1),
        "call_us": 1e6 * statistics.median(one.wall_time_s for one in verdict.samples)
        if verdict.samples
        else None,
        "calls": verdict.samples[0].iterations if verdict.samples else None,
        "clock": told.get("device clock on timed", ""),
        "reason": verdict.reason,
    }


def main() -> int:
    """Judge them in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time-limit", type=float, default=60.0)
    asked = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")  # on stderr: what takes the seconds
    logging.getLogger("ratchet.judge.trial").setLevel(logging.DEBUG)
    rows: list[dict[str, Any]] = []
    with KernelJudge() as judge:
        for _ in range(asked.verdicts):
            for name in SIZES:
                for kernel, source in kernels_of(name).items():
                    entry = name.rpartition(" ")[2]
                    given = Kernel(name=kernel, language="torch", source=source, entry=entry)
                    began = time.monotonic()
                    verdict = judge.judge(
                        given,
                        problem_of(name),
                        device=asked.device,
                        time_limit_s=asked.time_limit,
                    )
                    rows.append(row_of(name, kernel, verdict, time.monotonic() - began))
                    print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"all": summary(rows)}), flush=True)
    wrong = any(row["kernel"] == "same" and row["status"] == "proven" for row in rows)
    missed = any(row["kernel"] == "shorter" and row["status"] != "proven" for row in rows)
    return int(wrong or missed)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each problem's kernels' figures over all verdicts."""
    found: dict[str, Any] = {}
    for row in rows:
        one = found.setdefault(f"{row['problem']}, {row['kernel']}", {"ratios": [], "width": 0.0})
        if row["ratio"] is not None:
            low, ratio, high = row["ratio"]
            one["ratios"].append(round(ratio, 4))
            one["width"] = round(max(one["width"], high / low - 1), 4)
        one["verdict_s"] = max(one.get("verdict_s", 0.0), row["verdict_s"])
    return found


if __name__ == "__main__":
    sys.exit(main())
