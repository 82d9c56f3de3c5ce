"""Performance counters of kernels, read from a trace's file, with the op that launched each.

There are three sources: Kineto's CUPTI range profiler (an event of category `cuda_profiler_range`
for each kernel, with the metrics as arguments: libkineto/src/CuptiRangeProfiler.cpp), rocprofv3's
JSON (a record of `counter_collection` for each dispatch) and rocpd (the views `pmc_events` and
`kernels`: rocprofiler-sdk-rocpd/data_views.sql).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ratchet.base import Json
from ratchet.trace.analysis.links import Links
from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.read.rocprof import columns_of, is_database, is_rocprof, opened, rocprof_runs
from ratchet.trace.read.stream import raw_events

CATEGORY = "cuda_profiler_range"
_KNOWN_OTHERS = re.compile(r"^(PyTorch Profiler|Iteration Start|Record Window End|Trace)")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRun:
    kernel: str
    correlation: int  # Correlation of the call that launched it; -1 if the file does not say
    values: Mapping[str, float]


class _Range(Struct, gc=False):
    cat: Json = ""
    name: Json = ""
    ts: Json = 0
    args: dict[str, Json] = field(default_factory=dict)


def kernel_runs(path: Path, trace: Trace, note: Callable[[str], None]) -> tuple[KernelRun, ...]:
    """Read the kernels' counters from a trace's file, in the order in which the kernels ran.

    If the columns show that there are none, the file is not read again. TraceError if it cannot be
    opened.
    """
    if is_database(path):
        return tuple(_of_database(path, note))
    if is_rocprof(path):
        return tuple(_of_rocprof(path, note))
    others = trace.text[trace.rows(Kind.OTHER)]
    if not (~trace.named(_KNOWN_OTHERS)[others]).any():
        return ()
    ranges = [
        event
        for events in raw_events(path, _Range, note)
        for event in events
        if event.cat == CATEGORY
    ]
    # Their times only divide the recording up; only their order is real.
    ranges.sort(key=lambda event: float(event.ts))
    return tuple(
        KernelRun(kernel=str(event.name), correlation=-1, values=_numbers(event.args))
        for event in ranges
    )


def _numbers(values: Mapping[str, Json]) -> dict[str, float]:
    found = {}
    for name, value in values.items():
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(number := float(value)):
                found[name] = number
    return found


def _of_rocprof(path: Path, note: Callable[[str], None]) -> Iterator[KernelRun]:
    """Sum the records of each counter of a dispatch."""
    try:
        runs = rocprof_runs(path, note)
    except msgspec.DecodeError as error:
        note(f"counters that cannot be decoded were left out ({error})")
        return
    for run in runs:
        counter = {one.id.handle: one.name for one in run.counters}
        found = run.callback_records.counter_collection
        found = sorted(found, key=lambda one: one.dispatch_data.start_timestamp)
        kernels = run.kernel_names(one.dispatch_data for one in found)
        for kernel, one in zip(kernels, found, strict=True):
            values: dict[str, float] = defaultdict(float)
            for record in one.records:
                handle = record.counter_id.handle
                values[counter.get(handle, f"counter {handle}")] += record.value
            correlation = one.dispatch_data.correlation_id.internal
            yield KernelRun(kernel=kernel, correlation=correlation, values=values)


def _of_database(path: Path, note: Callable[[str], None]) -> Iterator[KernelRun]:
    try:
        with opened(path) as connection:
            if not {"event_id", "name", "value"} <= columns_of(connection, "pmc_events"):
                return
            found = connection.execute(
                "SELECT K.event_id, K.name, K.stack_id, P.name, SUM(P.value) FROM `pmc_events` P "
                "JOIN `kernels` K ON K.event_id = P.event_id GROUP BY K.event_id, P.name "
                "ORDER BY K.start, K.event_id"
            ).fetchall()
    except sqlite3.DatabaseError as error:
        note(f"counters that cannot be read were left out ({error})")
        return
    for (_, kernel, stack), own in itertools.groupby(found, key=lambda row: row[:3]):
        values = {str(counter): float(value) for *_, counter, value in own}
        yield KernelRun(kernel=str(kernel), correlation=int(stack or -1), values=values)


LAUNCH = re.compile(r"^(cuda|cu)LaunchKernel")
CUDA_CORE_FLOPS = "CUDA core FLOP"
_FLOPS_OF = re.compile(r"^smsp__sass_thread_inst_executed_op_[fhd](fma|mul|add)_pred_on\.sum$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterRow:
    """One counter of one kernel under one op, over all counted runs."""

    kernel: str
    counter: str
    op: str  # The innermost CPU op around the launch; empty if none is known
    top_op: str  # The outermost CPU op around the launch
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
