"""Show where a step's time goes, from a profiler trace read like `ratchet trace report`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.probe import Device
from ratchet.trace.advice import advise
from ratchet.trace.analysis import Identity
from ratchet.trace.answers.ceilings import measured_ceilings
from ratchet.trace.answers.report import Report, report
from ratchet.trace.answers.work import PRODUCTS
from ratchet.trace.answers.work.call import FULL_MASK
from ratchet.trace.read import read
from ratchet.train.turn.optimize_result import FindingResult, IdentityResult, OpTime, StepProfile

NS = 1e9
OVERHEAD = "overhead"

# An operator belongs to the first category that has a word in its name.
_CATEGORIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product", "flash_attention", "efficient_attention",
                   "fused_attention", "ratchet::attention")),
    ("loss", ("cross_entropy", "nll_loss", "log_softmax", "mse_loss", "_loss")),
    ("optimizer", ("adam", "Adam", "_foreach", "Optimizer", "optimizer", "clip_grad",
                   "linalg_vector_norm", "ratchet::global_norm", "sgd")),
    ("compiled", ("CompiledFx", "Compiled Region", "Torch-Compiled", "CompiledFunction",
                  "cpp_fused", "graph_", "triton_", "TorchDynamo", "AOTDispatcher")),
    ("convolution", ("conv",)),
    ("norm", ("layer_norm", "LayerNorm", "rms_norm", "RmsNorm", "batch_norm", "BatchNorm",
              "group_norm", "GroupNorm", "instance_norm")),
    ("matmul", ("mm", "linear", "Linear", "matmul", "gemm", "einsum", "aten::dot", "aten::mv",
                "grouped")),
    ("embedding", ("embedding", "Embedding", "index", "gather", "scatter", "take", "one_hot")),
    ("pooling", ("pool", "Pool", "upsample", "interpolate")),
    ("memory", ("copy_", "_to_copy", "empty", "zero", "fill_", "ones", "full",
                "clone", "aten::cat", "contiguous", "resize", "stack", "repeat",
                "aten::roll", "aten::pad", "constant_pad", "detach", "free", "alloc")),
    ("view", ("view", "reshape", "transpose", "permute", "as_strided", "slice",
              "select", "expand", "squeeze", "narrow", "split", "chunk", "unbind")),
    ("elementwise", ("mul", "add", "sub", "div", "neg", "silu", "gelu", "relu", "sigmoid", "tanh",
                     "exp", "log", "pow", "sqrt", "rsqrt", "softmax", "sum", "mean", "max", "min",
                     "var", "abs", "clamp", "where", "mask", "dropout", "bernoulli", "normal_",
                     "uniform_", "rand", "cos", "sin", "threshold", "square", "lerp", "tril",
                     "triu", "eq", "ne", "lt", "gt", "le", "ge", "any", "all", "arange", "item",
                     "_local_scalar_dense", "isnan", "isinf", "sort", "topk", "cumsum", "gated",
                     "rope", "std", "norm", "bitwise", "logical", "erf", "ceil", "floor")),
    (OVERHEAD, ("aten::", "torch::", "Function", "AccumulateGrad")),
)  # fmt: skip
_OVERHEAD_BELOW_S = 10e-6
"""Time per call below which an operator is bound by its launch, not by its work."""
KEPT_OPS = 24


_GRAPH_NODE = re.compile(r"autograd::|(?!Compiled)[A-Z]\w*Backward\d*$")
"""Autograd's own work around the operators of a backward pass."""


def categorise(name: str) -> str:
    """Return the category of an operator's name; `other` if none fits."""
    if _GRAPH_NODE.match(name):
        return OVERHEAD
    for category, words in _CATEGORIES:
        if any(word in name for word in words):
            return category
    return "other"


def explain(
    path: Path, steps: int, device: Device, ceilings: Ceilings | None, system_s: float = 0.0
) -> StepProfile:
    """Summarise a trace of `steps` steps per step: operators by time, time split, findings.

    The operators after the first `KEPT_OPS` are one line for each category. `system_s` is the CPU
    time of a step inside the operating system.
    """
    trace = read(path)
    held = measured_ceilings(ceilings, device.model) if ceilings is not None else None
    found = report(trace, held)
    times, calls = _by_operator(found)
    flops, least = _flops(found), _least(found)
    peak = _at_peak(found) if held is not None else None
    total = sum(times.values())

    def line(names: Sequence[str], title: str, bound: str = "") -> OpTime:
        time = sum(times[name] for name in names)
        bounds = [min(least[name], times[name]) for name in names if name in least]
        return OpTime(
            name=title,
            category=categorise(names[0]),
            time_s=time / NS / steps,
            calls=max(1, round(sum(calls[name] for name in names) / steps)),
            share=time / total if total else 0.0,
            bound=bound,
            least_s=sum(bounds) / NS / steps if bounds else None,
        )

    ranked = sorted(times, key=lambda name: -times[name])
    rest: dict[str, list[str]] = {}
    for name in ranked[KEPT_OPS:]:
        rest.setdefault(categorise(name), []).append(name)
    more = [line(group, f"{len(group)} more of {category}") for category, group in rest.items()]
    return StepProfile(
        total_s=total / NS / steps,
        ops=[
            *(
                line([one], one, _bound(times[one], calls[one], flops.get(one, 0), peak, one))
                for one in ranked[:KEPT_OPS]
            ),
            *sorted(more, key=lambda op: -op.time_s),
        ],
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
        system_s=system_s,
    )


def _by_operator(found: Report) -> tuple[Counter[str], Counter[str]]:
    """Count nanoseconds and calls by operator: time on the device, or the CPU's own time."""
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
    """Sum the FLOPs of what they bound: products, and whatever is known to be bound by them."""
    flops: Counter[str] = Counter()
    for row in found.roofline:
        if row.bound == "compute" or (row.bound == "unknown" and row.category in PRODUCTS):
            flops[row.name] += row.flops
    return flops


def _at_peak(found: Report) -> dict[str, float]:
    """Return the nanoseconds of each operator's operations at the measured rate of their dtype."""
    peak: dict[str, float] = {}
    for row in found.roofline:
        if row.roof_flops_per_s:
            peak[row.name] = peak.get(row.name, 0.0) + NS * row.flops / row.roof_flops_per_s
    return peak


def _least(found: Report) -> dict[str, float]:
    """Return nanoseconds at the ceiling by operator, if its work and the ceiling are known.

    What is no product has a bound of 0, because fusion could remove all of its time. A causal mask
    halves attention's work; where the trace does not show the mask, the bound is half.
    """
    least: dict[str, float] = {}
    for row in found.roofline:
        if row.least:
            share = 0.5 if row.flops_from == FULL_MASK else float(row.category in PRODUCTS)
            least[row.name] = least.get(row.name, 0.0) + share * row.least
    return least


def _identity(found: Identity, steps: int) -> IdentityResult:
    return IdentityResult(
        window_s=found.window / NS / steps,
        compute_s=found.compute / NS / steps,
        exposed_communication_s=found.exposed_communication / NS / steps,
        exposed_copy_s=found.exposed_copy / NS / steps,
        idle_s=found.idle / NS / steps,
    )


def _bound(
    time_ns: float, calls: int, flops: float, peak: dict[str, float] | None, name: str
) -> str:
    if time_ns / NS / calls < _OVERHEAD_BELOW_S:
        return "overhead"
    if not flops:
        return "memory"
    if peak is None or name not in peak:
        return "compute"
    return f"compute ({peak[name] / time_ns:.0%} of the ceiling)"
