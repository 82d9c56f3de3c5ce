"""Performance counters of kernels, read from a trace's file.

There are three sources: Kineto's CUPTI range profiler (an event of category `cuda_profiler_range`
for each kernel, with the metrics as arguments: libkineto/src/CuptiRangeProfiler.cpp), rocprofv3's
JSON (a record of `counter_collection` for each dispatch) and rocpd (the views `pmc_events` and
`kernels`: rocprofiler-sdk-rocpd/data_views.sql).
"""

from __future__ import annotations

import itertools
import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct, field

from ratchet.base.json_value import Json
from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.read.rocpd import columns_of, is_database, opened
from ratchet.trace.read.rocprof import is_rocprof, rocprof_runs
from ratchet.trace.read.stream import raw_events

CATEGORY = "cuda_profiler_range"
_KNOWN_OTHERS = re.compile(r"^(PyTorch Profiler|Iteration Start|Record Window End|Trace)")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRun:
    """The counters of one run of a kernel."""

    kernel: str
    correlation: int
    """Correlation of the call that launched it; -1 if the file does not say."""
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
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return {name: value for name, value in found.items() if math.isfinite(value)}


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
