"""Performance counters of kernels as their files hold them.

Three sources: Kineto's CUPTI range profiler (one event of category `cuda_profiler_range` a kernel,
its arguments the metrics: libkineto/src/CuptiRangeProfiler.cpp), rocprofv3's JSON (one record of
`counter_collection` a dispatch) and rocpd (the views `pmc_events` and `kernels`:
rocprofiler-sdk-rocpd/data_views.sql).
"""

from __future__ import annotations

import itertools
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.read.raw import raw_events
from ratchet.trace.read.rocpd import is_database
from ratchet.trace.read.rocprof import is_rocprof
from ratchet.trace.read.stream import unpack

CATEGORY = "cuda_profiler_range"
_KNOWN_OTHERS = re.compile(r"^(PyTorch Profiler|Iteration Start|Record Window End|Trace)")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRun:
    """What was counted of one run of a kernel."""

    kernel: str
    correlation: int
    """Of the call that launched it; -1 where the file does not say."""
    values: Mapping[str, float]


class _Range(Struct, gc=False):
    cat: Any = ""
    name: Any = ""
    ts: Any = 0
    args: dict[str, Any] = field(default_factory=dict)


def kernel_runs(path: Path, trace: Trace, note: Callable[[str], None]) -> tuple[KernelRun, ...]:
    """What a trace's file says of its kernels' counters, in the order in which they ran.

    Nothing is read again where the columns show that there are none. TraceError when the file
    cannot be opened.
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
        for events, _ in raw_events(path, _Range, note)
        for event in events
        if event.cat == CATEGORY
    ]
    # Their times only share out the recording: what holds is the order.
    ranges.sort(key=lambda event: float(event.ts))
    return tuple(
        KernelRun(kernel=str(event.name), correlation=-1, values=_numbers(event.args))
        for event in ranges
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in values.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return {name: value for name, value in found.items() if math.isfinite(value)}


class _Handle(Struct):
    handle: int = 0


class _Correlation(Struct):
    internal: int = -1


class _Dispatch(Struct):
    kernel_id: int = -1


class _DispatchData(Struct):
    dispatch_info: _Dispatch = field(default_factory=_Dispatch)
    correlation_id: _Correlation = field(default_factory=_Correlation)
    start_timestamp: int = 0


class _Count(Struct):
    counter_id: _Handle = field(default_factory=_Handle)
    value: float = 0.0


class _Collection(Struct):
    dispatch_data: _DispatchData = field(default_factory=_DispatchData)
    records: list[_Count] = field(default_factory=list)


class _Records(Struct):
    counter_collection: list[_Collection] = field(default_factory=list)


class _Named(Struct):
    id: _Handle = field(default_factory=_Handle)
    name: str = ""


class _Symbol(Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Run(Struct):
    counters: list[_Named] = field(default_factory=list)
    kernel_symbols: list[_Symbol] = field(default_factory=list)
    callback_records: _Records = field(default_factory=_Records)


class _File(Struct):
    runs: list[_Run] = field(name="rocprofiler-sdk-tool")


def _of_rocprof(path: Path, note: Callable[[str], None]) -> Iterable[KernelRun]:
    """One counter of a dispatch may stand in several records, one a unit: they are summed."""
    try:
        runs = msgspec.json.decode(b"".join(unpack(path, note)), type=_File).runs
    except msgspec.DecodeError as error:
        note(f"counters that cannot be decoded were left out ({error})")
        return
    for run in runs:
        counter = {one.id.handle: one.name for one in run.counters}
        kernel = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in run.kernel_symbols}
        for one in sorted(
            run.callback_records.counter_collection, key=lambda c: c.dispatch_data.start_timestamp
        ):
            values: dict[str, float] = {}
            for record in one.records:
                name = counter.get(record.counter_id.handle, f"counter {record.counter_id.handle}")
                values[name] = values.get(name, 0.0) + record.value
            number = one.dispatch_data.dispatch_info.kernel_id
            yield KernelRun(
                kernel=kernel.get(number, f"kernel {number}"),
                correlation=one.dispatch_data.correlation_id.internal,
                values=values,
            )


def _of_database(path: Path, note: Callable[[str], None]) -> Iterable[KernelRun]:
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
        try:
            known = {row[1] for row in connection.execute("PRAGMA table_info(`pmc_events`)")}
            if not {"event_id", "name", "value"} <= known:
                return
            found = connection.execute(
                "SELECT K.event_id, K.name, K.stack_id, P.name, SUM(P.value) FROM `pmc_events` P "
                "JOIN `kernels` K ON K.event_id = P.event_id GROUP BY K.event_id, P.name "
                "ORDER BY K.start, K.event_id"
            ).fetchall()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        note(f"counters that cannot be read were left out ({error})")
        return
    for (_, kernel, stack), own in itertools.groupby(found, key=lambda row: row[:3]):
        values = {str(counter): float(value) for *_, counter, value in own}
        yield KernelRun(kernel=str(kernel), correlation=int(stack or -1), values=values)
