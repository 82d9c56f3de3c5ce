"""Where a step's time goes: a profiler trace, read as `ratchet trace report` reads one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.devices.ceilings import Ceilings
from ratchet.devices.probe import Device
from ratchet.optimize.result import FindingResult, IdentityResult, OpTime, StepProfile
from ratchet.trace.advice import advise
from ratchet.trace.identity import Identity
from ratchet.trace.read import read
from ratchet.trace.report import Report, report
from ratchet.trace.roofline import measured_ceilings

NS = 1e9

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


def record_steps(
    step: Any, batches: Sequence[Any], steps: int, device: str, path: Path
) -> dict[str, Any]:
    """Profile `steps` steps into a Chrome trace at `path`, a step mark around each (JSON)."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for index in range(steps):
            with record_function(f"ProfilerStep#{index}"):
                step(batches[index % len(batches)])
    profiler.export_chrome_trace(str(path))
    return {"steps": steps}


def explain(path: Path, steps: int, device: Device, ceilings: Ceilings | None) -> StepProfile:
    """What a trace of `steps` steps says of one: operators by time, the identity, the findings."""
    trace = read(path)
    held = measured_ceilings(ceilings, device.model) if ceilings is not None else None
    found = report(trace, held)
    times, calls = _by_operator(found)
    flops = _flops(found)
    total = sum(times.values())
    ranked = sorted(times, key=lambda name: -times[name])
    ops = [
        OpTime(
            name=name,
            category=categorise(name),
            time_s=times[name] / NS / steps,
            calls=max(1, round(calls[name] / steps)),
            share=times[name] / total if total else 0.0,
            bound=_bound(times[name] / NS, calls[name], flops.get(name, 0), ceilings),
        )
        for name in ranked[:KEPT_OPS]
    ]
    rest = ranked[KEPT_OPS:]
    if rest:
        time = sum(times[name] for name in rest)
        ops.append(
            OpTime(
                name=f"{len(rest)} more operators",
                category="other",
                time_s=time / NS / steps,
                calls=round(sum(calls[name] for name in rest) / steps),
                share=time / total if total else 0.0,
                bound="",
            )
        )
    return StepProfile(
        total_s=total / NS / steps,
        ops=ops,
        identity=_identity(found.identity, steps),
        findings=[
            FindingResult(
                name=one.name,
                evidence=one.evidence,
                gain_s=one.gain / NS / steps,
                levers=list(one.levers),
                remedy=one.remedy,
            )
            for one in advise(found)
        ],
        trace=str(path),
    )


def _by_operator(found: Report) -> tuple[Counter[str], Counter[str]]:
    """Nanoseconds and calls by operator's name: on the device, or the CPU's own."""
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    on_device = any(row.device for row in found.ops)
    for row in found.ops:
        time = row.device if on_device else row.cpu_own
        if time > 0 and not row.name.startswith("ProfilerStep"):
            times[row.name] += time
            calls[row.name] += row.count
    return times, calls


def _flops(found: Report) -> Counter[str]:
    flops: Counter[str] = Counter()
    for row in found.roofline:
        flops[row.name] += row.flops
    return flops


def _identity(found: Identity, steps: int) -> IdentityResult:
    return IdentityResult(
        window_s=found.window / NS / steps,
        compute_s=found.compute / NS / steps,
        exposed_communication_s=found.exposed_communication / NS / steps,
        exposed_copy_s=found.exposed_copy / NS / steps,
        idle_s=found.idle / NS / steps,
    )


def _bound(time_s: float, calls: int, flops: float, ceilings: Ceilings | None) -> str:
    if time_s / calls < _OVERHEAD_BELOW_S:
        return "overhead"
    if not flops:
        return "memory"
    if ceilings is None:
        return "compute"
    share = flops / time_s / max(ceilings.gemm_flops_per_s.values())
    return f"compute ({share:.0%} of the ceiling)"
