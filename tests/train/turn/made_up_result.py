"""A turn's result with made-up figures of a realistic size, for the tests of the report."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from ratchet.train.turn.optimize_result import OptimizeResult

ARMS = {
    "as_written": ("as written", 2.214, 0.031),
    "best_compile": ("torch.compile's best", 0.561, 0.012),
    "best_compile_same": ("torch.compile's best, same arithmetic", 1.342, 0.02),
    "same_arithmetic": ("Ratchet, arithmetic kept", 1.084, 0.018),
    "ratchet": ("Ratchet", 0.3067, 0.006),
}
BEFORE = [
    ("aten::mm", "matmul", 1.243, 258, "compute (71% of the ceiling)"),
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention", 0.212, 6, "memory"),
    ("aten::_log_softmax", "loss", 0.181, 1, "memory"),
    ("Optimizer.step#AdamW.step", "optimizer", 0.168, 1, "memory"),
    ("aten::silu_backward", "elementwise", 0.121, 6, "memory"),
    ("aten::_fused_rms_norm_backward", "norm", 0.094, 13, "memory"),
    ("aten::copy_", "memory", 0.081, 97, "memory"),
    ("aten::embedding_dense_backward", "embedding", 0.041, 1, "memory"),
    ("112 more operators", "other", 0.066, 840, ""),
]
AFTER = [
    ("ratchet::linear", "matmul", 0.141, 86, "compute (83% of the ceiling)"),
    ("ratchet::linear_cross_entropy", "loss", 0.062, 1, "compute (78% of the ceiling)"),
    ("ratchet::adamw_", "optimizer", 0.036, 1, "memory"),
    ("ratchet::attention_backward", "attention", 0.019, 6, "compute (64% of the ceiling)"),
    ("Torch-Compiled Region", "compiled", 0.031, 12, "memory"),
    ("31 more operators", "other", 0.012, 120, ""),
]
NOT_WITHOUT = "the step is not faster without it"
CHANGES: list[tuple[str, str, float | None, str]] = [
    ("bf16_master", "kept", 1.03, NOT_WITHOUT),
    ("kernel:linear_cross_entropy", "kept", 1.21, NOT_WITHOUT),
    ("kernel:attention", "kept", 1.29, NOT_WITHOUT),
    ("kernel:adamw", "kept", 1.11, NOT_WITHOUT),
    ("kernel:linear", "kept", 1.17, NOT_WITHOUT),
    ("allocator_mallopt", "kept", None, "kept with the bundle; the budget ended before its turn"),
    ("kernel:rope", "dropped", 0.98, "the step is faster without it"),
    ("compile_max_autotune", "dropped", 1.004, "not faster on top of the rest"),
    ("kernel:rms_norm", "refused", None, "wrong: case 'outliers', norm error 3.1e-2 above 8.2e-3"),
    ("checkpointing", "not_applicable", None, "the step fits in memory without it"),
    ("attention_flash", "not_applicable", None, "it applies only to GPUs"),
    ("huge_pages", "not_tried", None, "the budget ended before it"),
]


def as_result(document: dict[str, Any]) -> OptimizeResult:
    """A document as `result.json` holds it, as the result that it is."""
    return msgspec.convert(document, OptimizeResult)


CHOICES = ("key", "status", "decision", "kind", "answer", "basis", "arm", "recipe_is", "config")
"""Fields that hold one of a few words: nothing else gets past the result's own check."""


def make_result(**changes: Any) -> dict[str, Any]:
    """A result as the document of an `OptimizeResult`, with fields replaced."""
    rng = random.Random(7)
    document: dict[str, Any] = {
        "workload": "llama-60m",
        "source": "built-in",
        "device": {
            "kind": "cpu",
            "vendor": "amd",
            "model": "AMD EPYC 9554 64-Core Processor",
            "cores": 2,
            "threads": 4,
            "isa": ["avx2", "avx512", "avx512_bf16"],
            "caches_bytes": {"l1d": 32768, "l2": 1 << 20, "l3": 32 << 20},
            "memory_bytes": 24 << 30,
            "fingerprint": "3f2a9c71d0be",
        },
        "versions": {"python": "3.11.4", "torch": "2.13.0+cpu", "compiler": "g++ 12.2.0"},
        "command": "ratchet optimize llama-60m",
        "started_at": "2026-01-31T09:14:02+00:00",
        "duration_s": 1634.2,
        "resumed": False,
        "arms": [_arm(key, *figures) for key, figures in ARMS.items()],
        "not_measured": {},
        "speedup": {
            "vs_written": _speedup(7.22, 7.05, 7.40),
            "vs_compile": _speedup(1.83, 1.78, 1.88),
            "vs_compile_same_arithmetic": _speedup(1.24, 1.21, 1.27),
        },
        "floor": {"low": 0.988, "high": 1.011},
        "best_compile": "torch.compile default, bf16 autocast, fused AdamW",
        "rivals": _rivals(),
        "changes": [_change(*change) for change in CHANGES],
        "profile_before": _profile(BEFORE),
        "profile_after": _profile(AFTER),
        "gradients": {
            "passed": True,
            "worst_parameter": "layers.3.attention.k.weight",
            "worst_ratio": 1.31,
            "detail": "every parameter's first-step gradient is within tolerance",
        },
        "losses": _losses(rng),
        "samples": _samples(rng),
        "compile": {"extra_setup_s": 47.3, "pays_after_steps": 25},
        "paste": {
            "apply": [
                "import ratchet",
                'step = ratchet.compile(step, model, optimizer, recipe="ratchet-out/recipe.json")',
                "# start the script with: MALLOC_TOP_PAD_=268435456 "
                "MALLOC_TRIM_THRESHOLD_=1073741824 "
                "python your_script.py",
            ],
            "undo": ["remove these lines to restore the script"],
        },
        "paths": {
            "recipe": "ratchet-out/recipe.json",
            "result": "ratchet-out/result.json",
            "report": "ratchet-out/report.html",
        },
        "verdicts": _verdicts(),
        "warnings": [],
    }
    return document | changes


def _arm(key: str, title: str, time_s: float, spread_s: float) -> dict[str, Any]:
    return {
        "key": key,
        "title": title,
        "step_time_s": time_s,
        "low_s": time_s - spread_s,
        "high_s": time_s + spread_s,
        "tokens_per_s": 1024 / time_s,
        "mfu": 0.118 / time_s if time_s < 1 else 0.39 / time_s,
        "peak_memory_bytes": int(2.9e9 - 6e8 * (key == "ratchet")),
        "setup_time_s": 48.2 if key != "as_written" else 3.1,
        "config": {"precision": "bf16_master" if key == "ratchet" else "fp32", "threads": 2},
    }


def _speedup(ratio: float, low: float, high: float) -> dict[str, Any]:
    return {"ratio": ratio, "low": low, "high": high, "answer": "faster"}


def _rivals() -> list[dict[str, Any]]:
    modes = [
        ("eager, fp32", "fp32", 2.21, ""),
        ("torch.compile default, fp32", "fp32", 1.34, ""),
        ("torch.compile default, bf16 autocast, fused AdamW", "bf16_autocast", 0.561, ""),
        (
            "torch.compile max-autotune, bf16 autocast",
            "bf16_autocast",
            None,
            "no room in the budget",
        ),
    ]
    return [
        {"title": t, "precision": p, "step_time_s": s, "setup_time_s": 40.0, "reason": r}
        for t, p, s, r in modes
    ]


def _change(name: str, decision: str, ratio: float | None, reason: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "kernel" if name.startswith("kernel:") else "lever",
        "decision": decision,
        "ratio": ratio,
        "low": ratio and ratio * 0.985,
        "high": ratio and ratio * 1.016,
        "reason": reason,
        "expected": "1.1x to 1.3x of the step",
        "source": "Liger-Kernel, arXiv:2410.10989",
        "changes_arithmetic": name.startswith("bf16"),
    }


def _profile(rows: list[tuple[str, str, float, int, str]]) -> dict[str, Any]:
    total_s = sum(row[2] for row in rows)
    names = ("name", "category", "time_s", "calls", "bound")
    ops = [dict(zip(names, row, strict=True)) | {"share": row[2] / total_s} for row in rows]
    return {
        "total_s": total_s,
        "ops": ops,
        "identity": {
            "window_s": 1.1 * total_s,
            "compute_s": total_s,
            "exposed_communication_s": 0.0,
            "exposed_copy_s": 0.0,
            "idle_s": 0.1 * total_s,
        },
        "findings": [
            {
                "name": "host bound",
                "evidence": "nothing ran for 9 % of the window",
                "gain_s": 0.1 * total_s,
                "levers": ["compile_default"],
                "remedy": "ratchet optimize llama-60m --try compile_default",
            }
        ],
        "trace": "ratchet-out/trace_before.json.gz",
    }


def _losses(rng: random.Random) -> dict[str, Any]:
    def curve(seed: int) -> list[float]:
        return [
            2.2 + 6.1 * math.exp(-step / 45) + rng.gauss(0, 0.05) + 0.03 * seed
            for step in range(200)
        ]

    return {
        "passed": True,
        "baseline": [curve(seed) for seed in range(3)],
        "candidate": [curve(seed) for seed in range(3)],
        "detail": "final loss 2.29 to 2.37 inside the baseline's 2.26 to 2.40 over 3 seeds",
    }


def _samples(rng: random.Random) -> list[dict[str, Any]]:
    samples = []
    for launch in range(3):
        for round_index in range(12):
            busy = 1 + 0.15 * (rng.random() > 0.93)
            for position, arm in enumerate(rng.sample([*ARMS, "twin"], len(ARMS) + 1)):
                mean_s = ARMS["best_compile" if arm == "twin" else arm][1]
                time_s = mean_s * busy * math.exp(rng.gauss(0, 0.02))
                samples.append(
                    {
                        "arm": arm,
                        "launch": launch,
                        "round": round_index,
                        "position": position,
                        "iterations": 1,
                        "wall_time_s": time_s,
                        "cpu_time_s": 1.9 * time_s,
                    }
                )
    return samples


def _verdicts() -> list[dict[str, Any]]:
    def verdict(name: str, status: str, reason: str, ratio: float | None) -> dict[str, Any]:
        speed = None if ratio is None else {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
        return {
            "kernel": name,
            "problem": f"{name}[1024x512]",
            "status": status,
            "reason": reason,
            "evidence": [
                {"check": "norm error", "passed": status != "wrong", "detail": "1.1e-3 of 8.2e-3"}
            ],
            "speedup": {"vs_reference": speed, "vs_compile": None},
            "isolation": "bubblewrap, fresh uid",
            "kernel_hash": "9a3f" * 16,
            "problem_hash": "c01d" * 16,
            "samples": [],
            "environment": {},
        }

    return [
        verdict("linear_cross_entropy", "proven", "right and faster", 2.41),
        verdict("attention", "proven", "right and faster", 4.98),
        verdict("rope", "correct", "right, not faster", 0.97),
        verdict("rms_norm", "wrong", "case 'outliers': norm error 3.1e-2 is above 8.2e-3", None),
    ]
