"""Tables as Parquet files, with pyarrow if it is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import get_args

from ratchet.base.errors import TraceError
from ratchet.base.files import check_new_folder, make_folder, whole_file
from ratchet.trace.export.tables import Table

UNITS = b"times in ns, sizes in bytes, rates in units a second"


def write_parquet(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table to FOLDER/NAME.parquet; an empty one keeps its columns.

    TraceError without pyarrow, FileError if the folder cannot be written.
    """
    arrow, parquet = _pyarrow()
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


def check_parquet(folder: Path) -> None:
    """Raise the TraceError that `write_parquet` would begin with, before a long trace is read."""
    _pyarrow()
    check_new_folder(folder, "--parquet")


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError(
            "--parquet needs pyarrow, which is not installed: pip install 'torch-ratchet[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
