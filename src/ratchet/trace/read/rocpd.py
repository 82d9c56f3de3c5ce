"""A rocpd database (rocprofv3's default output) to columns, through its views."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ratchet.base.errors import TraceError
from ratchet.base.files import SQLITE
from ratchet.trace.read.columns import DeviceProperties, Kind, Trace
from ratchet.trace.read.gather import Gatherer
from ratchet.trace.read.numbering import integers
from ratchet.trace.read.rocprof import kernel_kinds

MAGIC = SQLITE
_WANTED = ("name", "start", "end", "pid", "tid", "stack_id", "stream_id", "agent_type_index",
           "dst_agent_type_index", "size", "category")  # fmt: skip
_PIECE = 100_000


def is_database(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database to read."""
    with contextlib.closing(
        sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
    ) as connection:
        yield connection


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table or view; none if the database lacks it."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info(`{table}`)")}


def read_database(path: Path) -> Trace:
    """Read a rocpd database; TraceError if it holds none of rocpd's views."""
    gatherer = Gatherer()
    try:
        with opened(path) as connection:
            found = [_add(gatherer, connection, view) for view in _VIEWS]
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


_VIEWS = ("kernels", "memory_copies", "regions")


def _add(gatherer: Gatherer, connection: sqlite3.Connection, view: str) -> bool:
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
        "SELECT type_index, product_name FROM rocpd_info_agent WHERE type = 'GPU' "
        "ORDER BY type_index"
    )
    return tuple(
        DeviceProperties(index=int(i), name=str(name), memory_bytes=0, compute_units=0)
        for i, name in rows
    )
