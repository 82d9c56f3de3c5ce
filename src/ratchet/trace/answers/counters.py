"""Performance counters of kernels, with the op that launched each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.trace.analysis.links import Links
from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.read.counter_files import KernelRun

LAUNCH = re.compile(r"^(cuda|cu)LaunchKernel")
CUDA_CORE_FLOPS = "CUDA core FLOP"
_FLOPS_OF = re.compile(r"^smsp__sass_thread_inst_executed_op_[fhd](fma|mul|add)_pred_on\.sum$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterRow:
    """One counter of one kernel under one op, over all counted runs."""

    kernel: str
    counter: str
    op: str
    """The innermost CPU op around the launch; empty if none is known."""
    top_op: str
    """The outermost CPU op around the launch."""
    count: int
    total: float
    smallest: float
    largest: float

    @property
    def mean(self) -> float:
        return self.total / self.count


def counters(trace: Trace, links: Links, runs: Sequence[KernelRun]) -> tuple[CounterRow, ...]:
    """Return counters by kernel, op and counter.

    Runs without a correlation (CUPTI's ranges) match the launches in order. If there are more or
    fewer of them, no op is known.
    """
    launches = _launches(trace, runs)
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for run, launch in zip(runs, launches, strict=True):
        ops = [trace.string(op) for op in links.ops_around(launch)] if launch >= 0 else []
        key = (run.kernel, ops[0], ops[-1]) if ops else (run.kernel, "", "")
        own = found.setdefault(key, {})
        for name, value in {**run.values, **_derived(run.values)}.items():
            own.setdefault(name, []).append(value)
    rows = [
        CounterRow(
            kernel=kernel, counter=counter, op=op, top_op=top, count=len(values),
            total=sum(values), smallest=min(values), largest=max(values),
        )
        for (kernel, op, top), own in found.items()
        for counter, values in own.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.kernel, row.op, row.counter)))


def unlinked(trace: Trace, runs: Sequence[KernelRun]) -> str:
    """Return the reason why no run has an op; empty if some run has one."""
    if not runs or max(_launches(trace, runs)) >= 0:
        return ""
    return (
        f"counters of {len(runs):,} kernels stand without their ops: the trace holds "
        f"{len(_kernel_launches(trace)):,} launches to match them with"
    )


def _kernel_launches(trace: Trace) -> list[int]:
    rows = trace.rows(Kind.RUNTIME)
    return [int(row) for row in rows[trace.named(LAUNCH)[trace.text[rows]]]]


def _launches(trace: Trace, runs: Sequence[KernelRun]) -> list[int]:
    """Return the row of the call that launched each run; -1 if it is unknown."""
    if not runs:
        return []
    if all(run.correlation < 0 for run in runs):
        calls = _kernel_launches(trace)
        return calls if len(calls) == len(runs) else [-1] * len(runs)
    rows = trace.rows(Kind.RUNTIME)
    by_id = dict(zip(trace.correlation[rows].tolist(), rows.tolist(), strict=True))
    return [by_id.get(run.correlation, -1) if run.correlation > 0 else -1 for run in runs]


def _derived(values: Mapping[str, float]) -> dict[str, float]:
    """Sum the CUDA cores' FLOPs: one for each instruction and thread, two for a multiply-add."""
    parts = [
        (2 if found[1] == "fma" else 1) * value
        for name, value in values.items()
        if (found := _FLOPS_OF.match(name))
    ]
    return {CUDA_CORE_FLOPS: sum(parts)} if parts else {}
