"""rocprofv3's output to columns: its JSON, its CSV, and a rocpd database through its views."""

from __future__ import annotations

import contextlib
import csv
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from ratchet.base.errors import TraceError
from ratchet.base.files import SQLITE
from ratchet.trace.read.columns import DeviceProperties, Int64, Kind, Trace, integers
from ratchet.trace.read.gather import Gatherer
from ratchet.trace.read.stream import beginning, unpack

KEY = b'"rocprofiler-sdk-tool"'
COPY_KERNEL, FILL_KERNEL = "__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer"
"""Kernels with which the HIP runtime copies and fills if it does not use SDMA."""


class _Handle(Struct):
    handle: int = 0


class _Correlation(Struct):
    internal: int = -1


class _Dispatch(Struct):
    agent_id: _Handle = field(default_factory=_Handle)
    kernel_id: int = -1


class _Record(Struct):
    start_timestamp: int = 0
    end_timestamp: int = 0
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    bytes: int = -1
    correlation_id: _Correlation = field(default_factory=_Correlation)
    dispatch_info: _Dispatch = field(default_factory=_Dispatch)
    stream_id: _Handle = field(default_factory=_Handle)
    dst_agent_id: _Handle = field(default_factory=_Handle)


class _Count(Struct):
    counter_id: _Handle = field(default_factory=_Handle)
    value: float = 0.0


class CountedDispatch(Struct):
    """A dispatch whose counters were taken. A counter may have several records, one a unit."""

    dispatch_data: _Record = field(default_factory=_Record)
    records: list[_Count] = field(default_factory=list)


class _Callbacks(Struct):
    counter_collection: list[CountedDispatch] = field(default_factory=list)


class _NamedCounter(Struct):
    id: _Handle = field(default_factory=_Handle)
    name: str = ""


class _Records(Struct):
    kernel_dispatch: list[_Record] = field(default_factory=list)
    hip_api: list[_Record] = field(default_factory=list)
    memory_copy: list[_Record] = field(default_factory=list)
    rccl_api: list[_Record] = field(default_factory=list)


class _Domain(Struct):
    operations: list[str] = field(default_factory=list)


class _Strings(Struct):
    buffer_records: list[_Domain] = field(default_factory=list)


class _Symbol(Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(Struct):
    id: _Handle
    type: int = 0
    product_name: str = ""
    cu_count: int = 0


class _Metadata(Struct):
    pid: int = 0


class RocprofRun(Struct):
    """One process's part of a file."""

    metadata: _Metadata = field(default_factory=_Metadata)
    agents: list[_Agent] = field(default_factory=list)
    strings: _Strings = field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = field(default_factory=list)
    buffer_records: _Records = field(default_factory=_Records)
    callback_records: _Callbacks = field(default_factory=_Callbacks)
    counters: list[_NamedCounter] = field(default_factory=list)

    def kernel_names(self, dispatches: Iterable[_Record]) -> list[str]:
        names = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in self.kernel_symbols}
        numbers = [one.dispatch_info.kernel_id for one in dispatches]
        return [names.get(number, f"kernel {number}") for number in numbers]


class _File(Struct):
    runs: list[RocprofRun] = field(name="rocprofiler-sdk-tool")


def is_rocprof(path: Path) -> bool:
    """Return whether a file begins as rocprofv3 JSON does."""
    return KEY in beginning(path)


def rocprof_runs(path: Path, note: Callable[[str], None]) -> list[RocprofRun]:
    return msgspec.json.decode(b"".join(unpack(path, note)), type=_File).runs


def read_rocprof(path: Path) -> Trace:
    """Read rocprofv3 JSON; TraceError if it is damaged: its tables cannot be read in part."""
    gatherer = Gatherer()
    try:
        runs = rocprof_runs(path, gatherer.note)
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path.name} is rocprofv3 JSON that cannot be decoded ({error}): record it again, or "
            "with --output-format rocpd"
        ) from None
    devices: list[DeviceProperties] = []
    for run in runs:
        devices += _add(gatherer, run)
    if not gatherer.count:
        raise TraceError(
            f"{path.name} holds no kernel, copy or HIP call: record with --kernel-trace "
            "--memory-copy-trace --hip-trace"
        )
    gatherer.streams_known = bool(gatherer.main["stream"].held.max(initial=0) > 0)
    columns = gatherer.finish()
    return Trace(name=path.name, platform="rocm", devices=tuple(devices), **columns)


def kernel_kind(name: str) -> Kind:
    """Return KERNEL, or COPY or FILL for the runtime's own copy and fill kernels."""
    if name.startswith(COPY_KERNEL):
        return Kind.COPY
    return Kind.FILL if name.startswith(FILL_KERNEL) else Kind.KERNEL


def kernel_kinds(names: list[str]) -> NDArray[np.uint8]:
    return np.array([kernel_kind(name) for name in names], dtype=np.uint8)


def _add(gatherer: Gatherer, run: RocprofRun) -> list[DeviceProperties]:
    gpus = [agent for agent in run.agents if agent.type == 2]
    index = {agent.id.handle: i for i, agent in enumerate(gpus)}
    process = str(run.metadata.pid)
    # With counters only, the counted dispatches are all there is.
    counted = [one.dispatch_data for one in run.callback_records.counter_collection]
    work = run.buffer_records.kernel_dispatch or counted
    kernel = run.kernel_names(work)
    on = [index.get(r.dispatch_info.agent_id.handle, -1) for r in work]
    gatherer.add_rows(
        kernel_kinds(kernel), kernel, *_times(work),
        [(f"GPU {gpu}", str(r.stream_id.handle)) for gpu, r in zip(on, work, strict=True)],
        **_common(work), device=integers(on),
    )  # fmt: skip
    copies = run.buffer_records.memory_copy
    gatherer.add_rows(
        Kind.COPY, [_operation(run, r) for r in copies], *_times(copies),
        [(f"GPU {index.get(r.dst_agent_id.handle, -1)}", "copy") for r in copies],
        **_common(copies), size=integers([r.bytes for r in copies]),
    )  # fmt: skip
    for kind, calls in (
        (Kind.RUNTIME, run.buffer_records.hip_api),
        (Kind.ANNOTATION, run.buffer_records.rccl_api),
    ):
        gatherer.add_rows(
            kind, [_operation(run, r) for r in calls], *_times(calls),
            [(process, str(r.thread_id)) for r in calls],
            correlation=_common(calls)["correlation"],
        )  # fmt: skip
    return [DeviceProperties(name=a.product_name, compute_units=a.cu_count) for a in gpus]


def _times(records: list[_Record]) -> tuple[Int64, Int64]:
    start = integers([record.start_timestamp for record in records])
    return start, integers([record.end_timestamp for record in records])


def _common(records: list[_Record]) -> dict[str, Int64]:
    return {
        "correlation": integers([record.correlation_id.internal for record in records]),
        "stream": integers([record.stream_id.handle for record in records]),
    }


def _operation(run: RocprofRun, record: _Record) -> str:
    domains = run.strings.buffer_records
    if 0 <= record.kind < len(domains):
        operations = domains[record.kind].operations
        if 0 <= record.operation < len(operations):
            return operations[record.operation]
    return f"operation {record.kind}.{record.operation}"


_WANTED = ("name", "start", "end", "pid", "tid", "stack_id", "stream_id", "agent_type_index",
           "dst_agent_type_index", "size", "category")  # fmt: skip
_PIECE = 100_000


def is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def opened(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    place = f"file:{quote(str(path.resolve()))}?mode=ro"
    return contextlib.closing(sqlite3.connect(place, uri=True))


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table or view; none if the database lacks it."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info(`{table}`)")}


def not_read(path: Path, what: str) -> str:
    """Say that a file of another sort is not read, and which are."""
    return (
        f"{path.name} looks like {what}, which is not read: give Kineto or Chrome JSON, "
        "rocprofv3's JSON, pftrace or rocpd, or an XPlane profile"
    )


def read_database(path: Path) -> Trace:
    """Read a rocpd database; TraceError if it holds none of rocpd's views."""
    gatherer = Gatherer()
    try:
        with opened(path) as connection:
            if columns_of(connection, "META_DATA_EXPORT") or columns_of(connection, "StringIds"):
                raise TraceError(not_read(path, "an export of Nsight Systems"))
            views = ("kernels", "memory_copies", "regions")
            found = [_add_database(gatherer, connection, view) for view in views]
            devices = _devices(connection)
    except sqlite3.DatabaseError as error:
        raise TraceError(
            f"{path.name} cannot be read as SQLite ({error}): record it again"
        ) from None
    if not any(found) or not gatherer.count:
        raise TraceError(
            f"{path.name} holds no rocpd kernels, copies or regions: record it with rocprofv3 "
            "--output-format rocpd"
        )
    gatherer.streams_known = bool(gatherer.main["stream"].held.max(initial=0) > 0)
    return Trace(name=path.name, platform="rocm", devices=devices, **gatherer.finish())


def _add_database(gatherer: Gatherer, connection: sqlite3.Connection, view: str) -> bool:
    """Add one view's rows; return False if the database lacks the view."""
    known = columns_of(connection, view)
    if not {"name", "start", "end"} <= known:
        return False
    wanted = [column for column in _WANTED if column in known]
    listed = ", ".join(f"`{column}`" for column in wanted)
    cursor = connection.execute(f"SELECT {listed} FROM `{view}`")
    while rows := cursor.fetchmany(_PIECE):
        columns = dict(zip(wanted, zip(*rows, strict=True), strict=True))
        _add_piece(gatherer, view, columns, len(rows))
    return True


def _add_piece(
    gatherer: Gatherer, view: str, columns: Mapping[str, Sequence[object]], count: int
) -> None:
    def column(name: str) -> Sequence[object]:
        return columns.get(name, (-1,) * count)

    names = [str(name) for name in columns["name"]]
    start, end = integers(columns["start"]), integers(columns["end"])
    stack, stream = integers(column("stack_id")), integers(column("stream_id"))
    if view == "regions":
        lanes = [(str(p), str(t)) for p, t in zip(column("pid"), column("tid"), strict=True)]
        hip = [str(name).startswith(("hip", "__hip", "hsa_")) for name in names]
        kind = integers([Kind.RUNTIME if is_hip else Kind.ANNOTATION for is_hip in hip])
        gatherer.add_rows(kind, names, start, end, lanes, correlation=stack)
        return
    device = column("agent_type_index" if view == "kernels" else "dst_agent_type_index")
    lanes = [(f"GPU {d}", str(s)) for d, s in zip(device, stream.tolist(), strict=True)]
    gatherer.add_rows(
        kernel_kinds(names) if view == "kernels" else Kind.COPY, names, start, end, lanes,
        correlation=stack, stream=stream, device=integers(device), size=integers(column("size")),
    )  # fmt: skip


def _devices(connection: sqlite3.Connection) -> tuple[DeviceProperties, ...]:
    if not {"type", "product_name", "type_index"} <= columns_of(connection, "rocpd_info_agent"):
        return ()
    rows = connection.execute(
        "SELECT product_name FROM rocpd_info_agent WHERE type = 'GPU' ORDER BY type_index"
    )
    return tuple(DeviceProperties(name=str(name), compute_units=0) for (name,) in rows)


_TABLE = re.compile(
    r"^(?P<run>.*?)(?:kernel|memory_copy|(?:hip|hsa|marker|rccl)(?:_[a-z]+)*)_trace\.csv$"
)


def is_table(path: Path) -> bool:
    """Return whether a file has the name of a trace that rocprofv3 writes as CSV."""
    return _TABLE.match(path.name) is not None


def read_tables(path: Path) -> Trace:
    """Read rocprofv3's CSV: this table, and the others of its run beside it.

    TraceError if they hold no kernel, copy or call.
    """
    found = _TABLE.match(path.name)
    assert found, path
    run = found["run"]
    gatherer = Gatherer()
    beside = sorted(path.parent.iterdir())
    for one in beside:
        other = _TABLE.match(one.name)
        if other and other["run"] == run and one.is_file():
            _add_table(gatherer, _table(one, gatherer.note))
    if not gatherer.count:
        raise TraceError(
            f"{path.name} holds no kernel, copy or call of rocprofv3: record with --kernel-trace "
            "--memory-copy-trace --hip-trace"
        )
    listed = [row for one in beside if one.name == f"{run}agent_info.csv" for row in
              _table(one, gatherer.note) if row.get("Agent_Type") == "GPU"]  # fmt: skip
    units = integers([row.get("Cu_Count", 0) for row in listed]).tolist()
    devices = tuple(
        DeviceProperties(name=row.get("Product_Name", ""), compute_units=max(0, count))
        for row, count in zip(listed, units, strict=True)
    )
    gatherer.streams_known = bool(gatherer.main["stream"].held.max(initial=0) > 0)
    return Trace(name=path.name, platform="rocm", devices=devices, **gatherer.finish())


def _table(path: Path, note: Callable[[str], None]) -> list[dict[str, str]]:
    text = b"".join(unpack(path, note)).decode("utf-8", "replace")
    rows = csv.DictReader(text.splitlines(), restval="")
    return [row for row in rows if None not in row]


def _add_table(gatherer: Gatherer, rows: list[dict[str, str]]) -> None:
    if not rows or not {"Start_Timestamp", "End_Timestamp"} <= rows[0].keys():
        return

    def column(*names: str) -> list[str]:
        known = next((name for name in names if name in rows[0]), "")
        return [row.get(known, "").removeprefix("Agent ") for row in rows]

    times = integers(column("Start_Timestamp")), integers(column("End_Timestamp"))
    correlation, stream = integers(column("Correlation_Id")), column("Stream_Id", "Queue_Id")
    if "Kernel_Name" in rows[0] or "Direction" in rows[0]:
        names = column("Kernel_Name", "Direction")
        agent = column("Destination_Agent_Id", "Agent_Id")
        queues = stream if "Kernel_Name" in rows[0] else ["copy"] * len(rows)
        gatherer.add_rows(
            kernel_kinds(names) if "Kernel_Name" in rows[0] else Kind.COPY, names, *times,
            [(f"GPU {one}", queue) for one, queue in zip(agent, queues, strict=True)],
            correlation=correlation, stream=integers(stream), device=integers(agent),
        )  # fmt: skip
    elif "Function" in rows[0]:
        calls = [d.startswith(("HIP", "HSA")) for d in column("Domain")]
        gatherer.add_rows(
            integers([Kind.RUNTIME if one else Kind.ANNOTATION for one in calls]),
            column("Function"), *times,
            list(zip(column("Process_Id"), column("Thread_Id"), strict=True)),
            correlation=correlation,
        )  # fmt: skip
