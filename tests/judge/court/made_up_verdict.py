"""A verdict, a suite's table and a static profile with made-up figures."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel
from ratchet.judge.verdict import Verdict

ARMS = {
    "reference": 1.0e-3,
    "reference again": 1.0e-3,
    "torch.compile": 0.8e-3,
    "candidate": 0.5e-3,
}


CHOICES = ("status", "language", "task", "dtype", "layout", "distribution")
"""Fields of a verdict's document that hold one of a few words."""


def judged_of(document: dict[str, Any]) -> JudgedKernel:
    """The verdict, kernel and problem of a document."""
    problem = document["problem"]
    cases = tuple(
        Case(**case | {"inputs": tuple(TensorSpec(**spec) for spec in case["inputs"])})
        for case in problem["cases"]
    )
    return JudgedKernel(
        verdict=msgspec.convert(document["verdict"], Verdict),
        kernel=Kernel.from_json(document["kernel"]),
        problem=Problem(**problem | {"cases": cases}),
        judged_at=document["judged_at"],
        recalled=document["recalled"],
    )


def make_judged(**changes: Any) -> dict[str, Any]:
    """A proven kernel, as `JudgedKernel.to_json` gives it; `changes` go into its verdict."""
    verdict: dict[str, Any] = {
        "status": "proven",
        "reason": "right on every case, and faster: 2.01x (1.90 to 2.12) against the reference",
        "evidence": [
            {"check": "problem gate", "passed": True, "detail": ""},
            {"check": "correct on hidden_0", "passed": True, "detail": "output 0: 0.31 of 1"},
            {"check": "speed on cpu_0", "passed": True, "detail": "faster: 2.010"},
        ],
        "speedup": {
            "vs_reference": {"ratio": 2.01, "low": 1.9, "high": 2.12, "confidence": 0.95},
            "vs_compile": {"ratio": 1.6, "low": 1.5, "high": 1.71},  # from before
        },
        "static": make_profile(),
        "isolation": "bubblewrap, fresh uid without capabilities, rlimits",
        "kernel_hash": "9a3f" * 16,
        "problem_hash": "c01d" * 16,
        "samples": make_samples("cpu_0"),
        "environment": {"threads": 2, "language": "triton", "OMP_NUM_THREADS": "2"},
    }
    return {
        "verdict": verdict | changes,
        "kernel": {
            "name": "softmax.py",
            "language": "triton",
            "source": "import triton\n# <made up>\n",
            "entry": "softmax_forward",
            "schedule": [],
        },
        "problem": {
            "name": "softmax_forward",
            "reference": "module:function",
            "task": "own",
            "libraries": ["matmul"],
            "cases": [
                _case("cpu_0", [512, 1024], timed=True),
                _case("odd", [7, 33], layout="transposed"),
                _case("hidden_0", [3, 5], hidden=True),
            ],
        },
        "judged_at": "2026-01-31T09:14:15.926535+00:00",
        "recalled": False,
    }


def _case(name: str, shape: list[int], **changes: Any) -> dict[str, Any]:
    layout = changes.pop("layout", "contiguous")
    spec = {"shape": shape, "dtype": "float32", "distribution": "normal", "layout": layout}
    return {"name": name, "inputs": [spec], "timed": False, "hidden": False} | changes


def make_samples(case: str) -> list[dict[str, Any]]:
    """Three launches of eight rounds."""
    rng = random.Random(1)
    samples = []
    for launch in range(3):
        for round_index in range(8):
            for position, arm in enumerate(rng.sample(list(ARMS), len(ARMS))):
                time_s = ARMS[arm] * math.exp(rng.gauss(0, 0.03))
                samples.append(
                    {
                        "case": case,
                        "arm": arm,
                        "launch": launch,
                        "round": round_index,
                        "position": position,
                        "iterations": 5,
                        "wall_time_s": time_s,
                        "cpu_time_s": 2 * time_s,
                    }
                )
    return samples


def make_profile() -> dict[str, Any]:
    """What `inspect_kernel` returns: one kernel on two targets, and a target that failed."""
    kernel: dict[str, Any] = {
        "name": "softmax_kernel",
        "launches": 1,
        "tuned": True,
        "num_warps": 4,
        "num_stages": 2,
        "constants": {"BLOCK": 1024},
        "vgprs": 48,
        "agprs": 16,
        "sgprs": 30,
        "spills": 0,
        "lds_bytes": 8192,
        "scratch_bytes": 0,
        "occupancy_waves": 8,
        "occupancy_limit": "vgprs",
        "max_waves": 8,
        "matrix_instructions": [
            {
                "name": "v_mfma_f32_32x32x8_bf16",
                "count": 16,
                "shape": [32, 32, 8],
                "in_type": "bf16",
            }
        ],
        "global_load_bits": {"128": 4},
        "global_store_bits": {"64": 2},
        "notes": [],
        "mca": {"cycles_per_pass": 1234.0, "critical_resource": "HWVALU"},
    }
    slow = kernel | {
        "spills": 7,
        "notes": ["7 registers are spilled"],
        "mca": {"error": "llvm-mca is not installed"},
    }
    tried = kernel | {"launches": 0, "constants": {"BLOCK": 2048}}
    bound = {
        "device": "MI300X",
        "time_s": 1.5e-5,
        "matrix_s": 0.0,
        "memory_s": 1.5e-5,
        "limit": "memory",
        "estimate": True,
        "formula": "bytes / bandwidth",
    }
    return {
        "kernel": "softmax.py",
        "language": "triton",
        "case": "cpu_0",
        "compiler": "triton 3.7.1",
        "assumes": "an estimate and no measurement",
        "targets": {
            "gfx942": {
                "kernels": [kernel, tried],
                "bounds": [bound],
                "skipped_configs": 0,
                "error": None,
            },
            "gfx950": {"kernels": [slow], "bounds": [], "skipped_configs": 2, "error": None},
            "gfx1100": {
                "kernels": [],
                "bounds": [],
                "skipped_configs": 0,
                "error": "the entry raised ValueError: no such shape",
            },
        },
    }


def make_row(name: str, status: str, ratio: float | None = None, **changes: Any) -> dict[str, Any]:
    """One row of a suite's table."""
    speed = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    row = {
        "name": name,
        "status": status,
        "reason": f"{name} is {status}",
        "speedup": {"vs_reference": speed, "vs_compile": speed},
        "kernel": f"{name}.cpp",
        "kernel_hash": "9a3f" * 16,
        "problem_hash": "c01d" * 16,
        "recalled": False,
    }
    return row | changes
