"""Every answer as a flat table: its columns with their types, and its rows.

The tables follow from the fields of `Report` and have the names of `--json`: a tuple of rows is a
table, and a single answer is a table of one row. A field that does not fit into a cell of that row
is a table of its own (`critical_path_rows`, `memory_at_peak`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from ratchet.trace.advice import Finding, advise
from ratchet.trace.answers.report import Report
from ratchet.trace.compare.diff import Diff, DiffRow
from ratchet.trace.compare.ranks import Ranks, SharedCollective
from ratchet.trace.export.documents import plainly

Columns = dict[str, object]
"""Types by name: int, float, str, bool, or a list of one of them."""
_CELLS = (int, float, str, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Times are in ns, sizes in bytes, rates in units a second; a cell may be None."""

    name: str
    columns: Columns
    rows: Sequence[Mapping[str, object]]


def report_tables(reports: Sequence[Report]) -> list[Table]:
    """Return every table of one report or of several ranks', each row with its trace and rank."""
    made = [
        [*_of_answer("", Report, answers), _table("advice", Finding, advise(answers))]
        for answers in reports
    ]
    return [
        Table(
            name=first.name or "report",
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
    """Return the tables of every rank, and the one that only shows between them."""
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
    """Return the rows of a comparison, and the identity of both sides."""
    parts = [
        {"part": name, "before": found.parts_before[name], "after": found.parts_after[name]}
        for name in found.parts_before
    ]
    return [
        _table("rows", DiffRow, found.rows),
        _table("groups", DiffRow, found.groups),
        Table(name="identity", columns={"part": str, "before": int, "after": int}, rows=parts),
    ]


def _of_answer(name: str, kind: type, answer: object) -> Iterator[Table]:
    """Yield the table of one answer, and those of the fields that do not fit into its row."""
    yield _table(name, kind, [] if answer is None else [answer])
    for field, hint in _fields(kind).items():
        value = None if answer is None else getattr(answer, field)
        own = f"{name}_{field}" if name else field
        inner = get_args(hint)
        if dataclasses.is_dataclass(hint):
            yield from _of_answer(own, hint, value)  # type: ignore[arg-type]
        elif get_origin(hint) is dict:
            rows = [{"name": left, "value": right} for left, right in (value or {}).items()]
            yield Table(name=own, columns={"name": str, "value": inner[1]}, rows=rows)
        elif get_origin(hint) is tuple and dataclasses.is_dataclass(inner[0]):
            yield _table(own, inner[0], value or ())  # type: ignore[arg-type]


def _table(name: str, kind: type, rows: Sequence[object]) -> Table:
    columns = _columns(kind)
    plain = [{key: value for key, value in plainly(row).items() if key in columns} for row in rows]
    return Table(name=name, columns=columns, rows=plain)


def _columns(kind: type) -> Columns:
    """Return the fields and derived figures of a row that fit into one cell."""
    hints = _fields(kind)
    for name, member in vars(kind).items():
        if isinstance(member, property) and member.fget is not None:
            hints[name] = get_type_hints(member.fget)["return"]
    cells = {name: _cell(hint) for name, hint in hints.items()}
    return {name: cell for name, cell in cells.items() if cell is not None}


def _fields(kind: type) -> dict[str, object]:
    """Return the type of each field; of an optional one the type that it has if it is there."""
    hints = get_type_hints(kind)
    return {field.name: _present(hints[field.name]) for field in dataclasses.fields(kind)}


def _present(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    return next(part for part in get_args(hint) if part is not NoneType)


def _cell(hint: object) -> object:
    """Return the type of a column; None if a value does not fit into a cell."""
    hint = _present(hint)
    if hint in _CELLS:
        return hint
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) is tuple and len(set(get_args(hint)) - {...}) == 1:
        inner = _cell(get_args(hint)[0])
        return None if inner is None else list.__class_getitem__(inner)
    return None
