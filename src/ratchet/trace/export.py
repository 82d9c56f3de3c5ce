"""Answers for other programs: JSON documents, flat tables, Parquet, Excel.

The tables follow from the fields of `Report` and have the names of `--json`: a tuple of rows is a
table, and a single answer is a table of one row. A field that does not fit into a cell of that row
is a table of its own (`critical_path_rows`, `memory_at_peak`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ratchet.base import Json
from ratchet.base.errors import TraceError
from ratchet.base.files import check_new_folder, make_folder, whole_file, write_whole
from ratchet.trace.advice import Advice, advise
from ratchet.trace.analysis import Identity
from ratchet.trace.answers.report import Report
from ratchet.trace.compare import CategoryChange, Diff, DiffRow
from ratchet.trace.ranks import Ranks, SharedCollective


def document(answers: Report) -> dict[str, object]:
    """Return one rank's report as one JSON object."""
    whole = answers.identity
    plain = {
        field.name: plainly(getattr(answers, field.name))
        for field in dataclasses.fields(answers)
        if field.name not in ("identity", "steps", "by_device")
    }
    return {
        **plain,
        "window_ns": whole.window,
        "identity_ns": whole.times,
        "communication": _communication(whole),
        "steps": [_window(step) for step in answers.steps],
        "by_device": [_window(device) for device in answers.by_device],
        "advice": [plainly(finding) for finding in advise(answers)],
    }


def ranks_document(ranks: Ranks) -> dict[str, object]:
    """Return the reports of several ranks, their sums, and the differences between them."""
    whole = ranks.identity
    return {
        "window_ns": whole.window,
        "identity_ns": whole.times,
        "communication": {
            **_communication(whole),
            "wire_ns": ranks.wire,
            "waiting_ns": {str(rank): time for rank, time in ranks.waiting.items()},
            "straggler": ranks.straggler,
            "unmatched": ranks.unmatched,
        },
        "skew": ranks.skew,
        "shared_collectives": [plainly(row) for row in ranks.collectives],
        "faults": list(ranks.faults),
        "ranks": [document(answers) for answers in ranks.reports],
    }


def diff_document(found: Diff) -> dict[str, object]:
    before, after = found.before, found.after
    return {
        "before": before.name,
        "after": after.name,
        "device_before": before.device,
        "device_after": after.device,
        "ranks": len(before.ranks),
        "window_before_ns": before.window,
        "window_after_ns": after.window,
        "window_change_ns": found.window_change,
        "rows_change_ns": sum(row.change for row in found.rows),
        "hidden_change_ns": found.hidden_change,
        "idle_change_ns": found.idle_change,
        "identity_before_ns": before.parts,
        "identity_after_ns": after.parts,
        "identity_change_ns": found.parts_change,
        "device_work": before.on_device,
        "faults": list(found.faults),
        "categories": plainly(found.categories),
        "groups": plainly(found.groups),
        "rows": plainly(found.rows),
    }


def _window(part: Identity) -> dict[str, object]:
    return {
        "label": part.label,
        "start_ns": part.start,
        "window_ns": part.window,
        "overlap": part.overlap,
        **part.times,
    }


def _communication(whole: Identity) -> dict[str, object]:
    return {
        "total_ns": whole.communication,
        "exposed_ns": whole.exposed_communication,
        "overlap": whole.overlap,
    }


def plainly(value: object) -> Json:
    """Turn dataclasses into dicts with their derived figures, and tuples into lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: plainly(getattr(value, f.name)) for f in dataclasses.fields(value)}
        derived = [n for n, kind in vars(type(value)).items() if isinstance(kind, property)]
        return plain | {name: plainly(getattr(value, name)) for name in derived}
    if isinstance(value, tuple | list):
        return [plainly(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plainly(entry) for key, entry in value.items()}
    return value


Columns = dict[str, object]  # Types by name: int, float, str, bool, or a list of one of them
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
        [*_of_answer("", Report, answers), _table("advice", Advice, advise(answers))]
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
        {**plainly(row), "rank": rank, "waiting": time, "arrived": row.arrived[rank]}
        for row in ranks.collectives
        for rank, time in row.waiting.items()
    ]
    columns = _columns(SharedCollective) | {"rank": int, "waiting": int, "arrived": int}
    return [
        *report_tables(ranks.reports),
        Table(name="shared_collectives", columns=columns, rows=waits),
    ]


def diff_tables(found: Diff) -> list[Table]:
    """Return the rows of a comparison, and the identity of both sides."""
    parts = [
        {"part": name, "before": time, "after": found.after.parts[name]}
        for name, time in found.before.parts.items()
    ]
    return [
        _table("rows", DiffRow, found.rows),
        _table("groups", DiffRow, found.groups),
        _table("categories", CategoryChange, found.categories),
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


UNITS = b"times in ns, sizes in bytes, rates in units a second"


def write_parquet(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table to FOLDER/NAME.parquet; an empty one keeps its columns.

    TraceError without pyarrow, FileError if the folder cannot be written.
    """
    arrow, parquet = _package("pyarrow"), importlib.import_module("pyarrow.parquet")
    cells = {int: arrow.int64(), float: arrow.float64(), str: arrow.string(), bool: arrow.bool_()}

    def cell(kind: object) -> object:
        return cells[kind] if kind in cells else arrow.list_(cell(get_args(kind)[0]))

    make_folder(folder)
    written = []
    with contextlib.ExitStack() as stack:  # all of them, or none
        for table in tables:
            schema = arrow.schema(
                [(name, cell(kind)) for name, kind in table.columns.items()],
                metadata={b"units": UNITS},
            )
            path = folder / f"{table.name}.parquet"
            file = stack.enter_context(whole_file(path))
            parquet.write_table(arrow.Table.from_pylist(list(table.rows), schema=schema), file)
            file.flush()
            written.append(path)
    return written


EXCEL = ".xlsx"
_SHEET_ROWS, _CELL, _EXACT = 1_048_575, 32_767, 2**53  # Excel's limits; whole numbers are doubles
_WIDEST = 60  # Letters


def write_excel(tables: Iterable[Table], path: Path) -> None:
    """Write each table that has rows to a sheet of one workbook, its columns frozen and filtered.

    A text never becomes a formula or a link. What Excel cannot hold is cut, and the sheet says so.
    TraceError without XlsxWriter, FileError if the file cannot be written.
    """
    xlsxwriter = _package("xlsxwriter")
    made = io.BytesIO()
    told = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False,
            "in_memory": True}  # fmt: skip
    with xlsxwriter.Workbook(made, told) as book:
        head = book.add_format({"bold": True})
        book.set_properties({"comments": UNITS.decode()})
        for table in tables:
            if table.rows:
                _add_sheet(book.add_worksheet(table.name[:31]), table, head)
    with zipfile.ZipFile(made, "a") as packed:
        packed.comment = UNITS  # By which a later run knows the file as its own
    write_whole(path, made.getvalue())


def _add_sheet(sheet: Any, table: Table, head: object) -> None:
    names = list(table.columns)
    widths = [len(name) for name in names]
    for column, name in enumerate(names):
        sheet.write_string(0, column, name, head)
    for number, row in enumerate(table.rows[:_SHEET_ROWS], 1):
        for column, name in enumerate(names):
            value = _for_excel(row.get(name))
            if value is not None:
                sheet.write(number, column, value)
                widths[column] = max(widths[column], len(str(value)))
    for column, width in enumerate(widths):
        sheet.set_column(column, column, min(width + 2, _WIDEST))
    rows = min(len(table.rows), _SHEET_ROWS)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, rows, len(names) - 1)
    if len(table.rows) > rows:
        sheet.write_string(0, len(names), f"{len(table.rows) - rows:,} more rows do not fit")


def _for_excel(value: object) -> str | float | bool | None:
    """Return what a cell holds: lists as text, and numbers that a double cannot hold, too."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return str(value)[:_CELL]


def check_tables(out: Path | None, parquet: Path | None) -> None:
    """Raise the error that writing to these would begin with, before a long trace is read."""
    if parquet is not None:
        _package("pyarrow")
        check_new_folder(parquet, "--parquet")
    if out is not None and out.suffix == EXCEL:
        _package("xlsxwriter")


_EXTRAS = {
    "pyarrow": ("--parquet", "pyarrow", "parquet"),
    "xlsxwriter": (f"--out NAME{EXCEL}", "XlsxWriter", "excel"),
}
"""The option that needs a package, the package's name, and the extra that brings it."""


def _package(module: str) -> Any:
    """Import a package of an extra; TraceError without it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        option, name, extra = _EXTRAS[module]
        raise TraceError(
            f"{option} needs {name}, which is not installed: pip install 'torch-ratchet[{extra}]'"
        ) from None
