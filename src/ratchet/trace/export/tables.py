"""Every answer as a flat table: its columns with their types, and its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ratchet.trace.advice import Finding, advise
from ratchet.trace.analysis.identity import Identity
from ratchet.trace.answers.annotations import AnnotationRow
from ratchet.trace.answers.collectives import CollectiveRow
from ratchet.trace.answers.compiled import Compiled, Recompute
from ratchet.trace.answers.counters import CounterRow
from ratchet.trace.answers.critical_path.path import PathRow, PathStretch, PathWindow
from ratchet.trace.answers.idle import Idle, LaunchCost
from ratchet.trace.answers.kernels import KernelRow, ModuleRow, OpRow
from ratchet.trace.answers.matmuls import PrecisionRow
from ratchet.trace.answers.memory import MemoryUse
from ratchet.trace.answers.pipeline import Bubble
from ratchet.trace.answers.queues import QueueRow
from ratchet.trace.answers.report import Report
from ratchet.trace.answers.roofline import RooflineRow
from ratchet.trace.answers.sequences.sequences import SequenceRow
from ratchet.trace.answers.streams import CopyRow, StreamRow
from ratchet.trace.answers.timeline import bins
from ratchet.trace.compare.diff import Diff, DiffRow
from ratchet.trace.compare.ranks import Ranks, SharedCollective
from ratchet.trace.export.documents import plainly

Cell = type[int] | type[float] | type[str] | type[bool] | type[list[str]]
Columns = dict[str, Cell]
_CELLS: tuple[Any, ...] = (int, float, str, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Times are in ns, sizes in bytes, rates in units a second; a cell may be None."""

    name: str
    columns: Columns
    rows: Sequence[Mapping[str, Any]]


def report_tables(reports: Sequence[Report]) -> list[Table]:
    """Every table of one report or of several ranks', each row with its trace and rank."""
    made = [_tables_of(answers) for answers in reports]
    return [
        Table(
            name=first.name,
            columns={"trace": str, "rank": int, **first.columns},
            rows=[
                {"trace": answers.name, "rank": answers.rank, **row}
                for answers, tables in zip(reports, made, strict=True)
                for row in tables[index].rows
            ],
        )
        for index, first in enumerate(made[0])
    ]


def ranks_tables(ranks: Ranks) -> list[Table]:
    """The tables of every rank, and those that only show between them."""
    waits = [
        {**{k: v for k, v in plainly(row).items() if k != "waiting"}, "rank": rank, "waiting": time}
        for row in ranks.collectives
        for rank, time in row.waiting.items()
    ]
    columns = _columns(SharedCollective) | {"rank": int, "waiting": int}
    return [
        *report_tables(ranks.reports),
        Table(name="shared_collectives", columns=columns, rows=waits),
    ]


def diff_tables(found: Diff) -> list[Table]:
    """The rows of a comparison, and the identity of both sides."""
    parts = [
        {"part": name, "before": found.parts_before[name], "after": found.parts_after[name]}
        for name in found.parts_before
    ]
    return [
        _table("rows", DiffRow, found.rows),
        _table("groups", DiffRow, found.groups),
        Table(name="identity", columns={"part": str, "before": int, "after": int}, rows=parts),
    ]


def _tables_of(answers: Report) -> list[Table]:
    compiled, memory = answers.compiled, answers.memory
    at_peak = memory.at_peak if memory else {}
    breaks = compiled.break_reasons if compiled else {}
    recompiles = compiled.recompile_reasons if compiled else {}
    return [
        _table("identity", Identity, [answers.identity]),
        _table("steps", Identity, answers.steps),
        _table("devices", Identity, answers.by_device),
        _table("kernels", KernelRow, answers.kernels),
        _table("ops", OpRow, answers.ops),
        _table("modules", ModuleRow, answers.modules),
        _table("annotations", AnnotationRow, answers.annotations),
        _table("collectives", CollectiveRow, answers.collectives),
        _table("copies", CopyRow, answers.copies),
        _table("streams", StreamRow, answers.streams),
        _table("queues", QueueRow, answers.queues),
        _queue_timeline(answers),
        _bandwidth_timeline(answers),
        _table("sequences", SequenceRow, answers.sequences),
        _table("critical_path", PathRow, answers.critical_path.rows),
        _table(
            "critical_path_windows",
            PathWindow,
            [answers.critical_path.whole, *answers.critical_path.steps],
        ),
        _table("critical_path_chain", PathStretch, answers.critical_path.chain),
        _table("counters", CounterRow, answers.counters),
        _table("matmuls", PrecisionRow, answers.matmuls),
        _table("roofline", RooflineRow, answers.roofline),
        _table("idle", Idle, [answers.idle]),
        _table("launches", LaunchCost, [answers.launches]),
        _table("recompute", Recompute, [answers.recompute]),
        _table("memory", MemoryUse, [memory] if memory else []),
        _table("compiled", Compiled, [compiled] if compiled else []),
        _table("bubble", Bubble, [answers.bubble] if answers.bubble else []),
        _pairs("carried_in", "kernel", "time", answers.carried_in.kernels.items()),
        _pairs("memory_at_peak", "category", "size_bytes", at_peak.items()),
        _pairs("graph_breaks", "reason", "count", breaks.items()),
        _pairs("recompilations", "reason", "count", recompiles.items()),
        Table(
            name="memory_timeline",
            columns={"time": int, "allocated_bytes": int},
            rows=[
                {"time": time, "allocated_bytes": size}
                for time, size in (memory.timeline if memory else ())
            ],
        ),
        _table("advice", Finding, advise(answers)),
    ]


def _queue_timeline(answers: Report) -> Table:
    columns: Columns = {
        "device": int, "stream": int, "start": int, "end": int, "mean": float, "peak": int
    }  # fmt: skip
    rows = [
        {"device": row.device, "stream": row.stream, "start": start, "end": end, "mean": mean,
         "peak": peak}
        for row in answers.queues
        for (start, end), mean, peak in zip(
            bins(row.start, row.end), row.mean, row.peak, strict=True
        )
    ]  # fmt: skip
    return Table(name="queue_timeline", columns=columns, rows=rows)


def _bandwidth_timeline(answers: Report) -> Table:
    rows = [
        {"name": row.name, "start": start, "end": end, "bytes_per_s": rate}
        for row in answers.bandwidth
        for (start, end), rate in zip(bins(row.start, row.end), row.bytes_per_s, strict=True)
    ]
    columns: Columns = {"name": str, "start": int, "end": int, "bytes_per_s": float}
    return Table(name="bandwidth_timeline", columns=columns, rows=rows)


def _table(name: str, row_type: type, rows: Sequence[Any]) -> Table:
    columns = _columns(row_type)
    plain = [{key: value for key, value in plainly(row).items() if key in columns} for row in rows]
    return Table(name=name, columns=columns, rows=plain)


def _pairs(name: str, key: str, value: str, pairs: Iterable[tuple[Any, int]]) -> Table:
    rows = [{key: left, value: right} for left, right in pairs]
    return Table(name=name, columns={key: str, value: int}, rows=rows)


def _columns(row_type: type) -> Columns:
    """The fields and derived figures of a row that fit into one cell."""
    hints = get_type_hints(row_type)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(row_type)}
    for name, member in vars(row_type).items():
        if isinstance(member, property) and member.fget is not None:
            kinds[name] = get_type_hints(member.fget)["return"]
    cells = {name: _cell(kind) for name, kind in kinds.items()}
    return {name: cell for name, cell in cells.items() if cell is not None}


def _cell(kind: Any) -> Cell | None:
    """The type of a column; None for what is a table of its own."""
    if kind in _CELLS:
        return kind  # type: ignore[no-any-return]
    if get_origin(kind) is Literal:
        return str
    if get_origin(kind) in (Union, UnionType):
        own = [part for part in get_args(kind) if part is not NoneType]
        return _cell(own[0]) if len(own) == 1 else None
    return list[str] if kind == tuple[str, ...] else None
