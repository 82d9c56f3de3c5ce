"""Where a step's time goes: torch's profiler, summed by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.devices.ceilings import Ceilings
from ratchet.optimize.result import OpTime, StepProfile

# An operator belongs to the first category one of whose words its name holds.
_CATEGORIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product", "flash_attention", "ratchet::attention")),
    ("loss", ("cross_entropy", "nll_loss", "log_softmax")),
    ("matmul", ("mm", "linear", "matmul", "gemm", "einsum", "convolution")),
    ("optimizer", ("adam", "_foreach", "optimizer", "clip_grad", "linalg_vector_norm")),
    ("norm", ("layer_norm", "rms_norm")),
    ("embedding", ("embedding", "index_select", "gather", "scatter")),
    ("memory", ("copy_", "_to_copy", "empty", "zero_", "fill_", "clone", "cat")),
    ("compiled", ("CompiledFx", "Torch-Compiled", "cpp_fused", "graph_", "triton_")),
    ("elementwise", ("mul", "add", "div", "silu", "gelu", "sigmoid", "exp", "pow", "sum", "mean")),
)
_OVERHEAD_BELOW_S = 10e-6
"""An operator faster than this per call is bound by its launch, not by its work."""
KEPT_OPS = 24


def categorise(name: str) -> str:
    """The category of an operator's name; `other` where none fits."""
    for category, words in _CATEGORIES:
        if any(word in name for word in words):
            return category
    return "other"


def profile_step(step: Any, batches: Sequence[Any], steps: int, device: str) -> dict[str, Any]:
    """Profile `steps` steps: self time in seconds, calls and FLOPs by operator, per step (JSON)."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, with_flops=True, acc_events=True) as profiler:
        for index in range(steps):
            step(batches[index % len(batches)])
    rows = []
    for event in profiler.key_averages():
        on_device = float(getattr(event, "self_device_time_total", 0.0) or 0.0)
        time_us = on_device if device != "cpu" else float(event.self_cpu_time_total)
        if time_us > 0:
            rows.append(
                {
                    "name": str(event.key),
                    "time_s": time_us * 1e-6 / steps,
                    "calls": max(1, round(event.count / steps)),
                    "flops": float(event.flops or 0) / steps,
                }
            )
    return {"rows": rows}


def summarise(profiled: dict[str, Any], ceilings: Ceilings | None) -> StepProfile:
    """Rank a profile's operators by time and say what bounds each."""
    rows = sorted(profiled["rows"], key=lambda row: -row["time_s"])
    total_s = sum(row["time_s"] for row in rows)
    ops = [
        OpTime(
            name=row["name"],
            category=categorise(row["name"]),
            time_s=row["time_s"],
            calls=row["calls"],
            share=row["time_s"] / total_s if total_s else 0.0,
            bound=_bound(row, ceilings),
        )
        for row in rows[:KEPT_OPS]
    ]
    rest_s = sum(row["time_s"] for row in rows[KEPT_OPS:])
    if rest_s:
        ops.append(
            OpTime(
                name=f"{len(rows) - KEPT_OPS} more operators",
                category="other",
                time_s=rest_s,
                calls=sum(row["calls"] for row in rows[KEPT_OPS:]),
                share=rest_s / total_s,
                bound="",
            )
        )
    return StepProfile(total_s=total_s, ops=ops)


def _bound(row: dict[str, Any], ceilings: Ceilings | None) -> str:
    if row["time_s"] / row["calls"] < _OVERHEAD_BELOW_S:
        return "overhead"
    if not row["flops"]:
        return "memory"
    if ceilings is None:
        return "compute"
    rate = row["flops"] / row["time_s"]
    share = rate / max(ceilings.gemm_flops_per_s.values())
    return f"compute ({share:.0%} of the ceiling)"
