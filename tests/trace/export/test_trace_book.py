"""Excel workbooks, and the notebook that opens the tables in pandas and polars."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

import made_traces as mt
import pytest

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.export import Table, report_tables, write_excel

NOTEBOOK = Path(__file__).parents[3] / "examples" / "trace_tables.ipynb"
EVENTS = [
    mt.op("aten::mm", 0, 9, Input_Dims=[[4, 8], [8, 4]], Input_type=["float", "float"]),
    mt.launch(1, 1, 1), mt.kernel("=gemm(1)", 10, 30, 1),
]  # fmt: skip


def sheets(path: Path) -> dict[str, str]:
    """Each sheet's XML by its name."""
    with zipfile.ZipFile(path) as book:
        names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
        return {
            name: book.read(f"xl/worksheets/sheet{number}.xml").decode()
            for number, name in enumerate(names, 1)
        }


def texts(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as book:
        return re.findall(r"<t[^>]*>([^<]*)</t>", book.read("xl/sharedStrings.xml").decode())


def test_every_table_with_rows_is_a_sheet(tmp_path: Path) -> None:
    pytest.importorskip("xlsxwriter")
    tables = report_tables([report(mt.made(tmp_path, EVENTS))])
    write_excel(tables, tmp_path / "made.xlsx")
    found = sheets(tmp_path / "made.xlsx")
    assert list(found) == [table.name[:31] for table in tables if table.rows]
    assert {"kernels", "roofline", "ops", "identity"} <= set(found)
    assert "=gemm(1)" in texts(tmp_path / "made.xlsx")
    assert not any("<f>" in text for text in found.values())  # no formulas
    assert "<autoFilter" in found["kernels"] and 'state="frozen"' in found["kernels"]


def test_what_excel_cannot_hold_is_cut_or_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xlsxwriter")
    monkeypatch.setattr("ratchet.trace.export._SHEET_ROWS", 2)
    values = [2**60, "x" * 40_000, float("inf"), None, True, (1, 2), "http://a.example", "=1+1"]
    rows = [{"value": value} for value in values[:2]] + [{"value": 0}] * 3
    columns: dict[str, object] = {"value": str}
    write_excel([Table(name="n" * 40, columns=columns, rows=rows)], tmp_path / "a.xlsx")
    found = texts(tmp_path / "a.xlsx")
    assert {str(2**60), "x" * 32_767, "3 more rows do not fit"} <= set(found)
    assert list(sheets(tmp_path / "a.xlsx")) == ["n" * 31]
    monkeypatch.undo()
    rows = [{"value": value} for value in values[2:]]
    write_excel([Table(name="t", columns=columns, rows=rows)], tmp_path / "b.xlsx")
    assert {"1, 2", "http://a.example", "=1+1"} <= set(texts(tmp_path / "b.xlsx"))
    write_excel([], tmp_path / "none.xlsx")
    assert len(sheets(tmp_path / "none.xlsx")) == 1


def test_without_the_writer_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(TraceError, match=r"pip install 'torch-ratchet\[excel\]'"):
        write_excel([], tmp_path / "a.xlsx")


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACE", str(mt.write(tmp_path / "made.json", EVENTS)))
    book = json.loads(NOTEBOOK.read_text())
    names: dict[str, object] = {}
    run = 0
    for cell in book["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            if "polars" in text or "pl." in text:
                pytest.importorskip("polars", reason="the cells of pandas ran")
            exec(compile(text, "cell", "exec"), names)
            run += 1
    assert run == 5
