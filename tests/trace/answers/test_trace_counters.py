"""Performance counters, on files made up after the formats' public sources; none was recorded."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest
from made_rocprof import record, rocpd, rocprof_json

from ratchet.trace.answers.counters import CATEGORY, CUDA_CORE_FLOPS, CounterRow, kernel_runs
from ratchet.trace.answers.report import Report
from ratchet.trace.compare import report_run
from ratchet.trace.export import document, report_tables
from ratchet.trace.read import read
from ratchet.trace.read.stream import raw_events

FMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
ADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"


def ranges(*counted: tuple[str, dict[str, float]]) -> list[dict]:
    """Events as Kineto's CuptiRangeProfiler writes them: the recording's time shared out."""
    return [
        mt.span(CATEGORY, name, 100 * i, 100, **values) | {"pid": 0, "tid": "stream 0"}
        for i, (name, values) in enumerate(counted)
    ]


def reported(path: Path) -> tuple[Report, dict[tuple[str, str], CounterRow]]:
    found = report_run(path)
    assert isinstance(found, Report)
    return found, {(row.kernel, row.counter): row for row in found.counters}


def test_ranges_of_cupti_are_the_launches_in_order(tmp_path: Path) -> None:
    events = [
        mt.op("aten::linear", 0, 50), mt.op("aten::addmm", 5, 40), mt.launch(10, 5, 1),
        mt.op("aten::relu", 60, 20), mt.launch(65, 5, 2),
        mt.span("cuda_runtime", "cudaDeviceSynchronize", 90, 5, correlation=3),
        *ranges(("gemm", {FMA: 100, ADD: 20}), ("relu", {FMA: 0, ADD: 7, "note": "n/a"})),
    ]  # fmt: skip
    found, rows = reported(mt.write(tmp_path / "a.json.gz", events))
    gemm = rows["gemm", FMA]
    assert (gemm.op, gemm.top_op, gemm.count, gemm.total) == ("aten::addmm", "aten::linear", 1, 100)
    assert rows["gemm", CUDA_CORE_FLOPS].total == 220
    assert (rows["relu", ADD].op, rows["relu", ADD].mean) == ("aten::relu", 7)
    assert ("relu", "note") not in rows
    assert document(found)["counters"][0]["mean"] >= 0
    (table,) = (table for table in report_tables([found]) if table.name == "counters")
    assert len(table.rows) == len(found.counters) == 6


def test_ranges_that_are_not_the_launches_have_no_op(tmp_path: Path) -> None:
    events = [
        mt.op("aten::mm", 0, 50),
        mt.launch(10, 5, 1),
        *ranges(("a", {FMA: 1}), ("b", {FMA: 2})),
    ]
    found, rows = reported(mt.write(tmp_path / "a.json", events))
    assert rows["a", FMA].op == "" and len(rows) == 4
    assert any("counters of 2 kernels stand without their ops" in fault for fault in found.faults)


def counter_collection() -> list[dict[str, Any]]:
    """As rocprofv3 writes `--pmc SQ_WAVES FETCH_SIZE`: a record a counter, or several."""

    def dispatch(start: int, correlation: int, kernel: int, *counts: tuple[int, float]) -> dict:
        data = record(start, start + 900, correlation)
        data["dispatch_info"] = {"agent_id": {"handle": 50}, "kernel_id": kernel}
        return {
            "dispatch_data": data,
            "records": [{"counter_id": {"handle": c}, "value": v} for c, v in counts],
        }

    return [dispatch(3000, 2, 4, (71, 6.0), (72, 10.5)),
            dispatch(1000, 1, 4, (71, 2.0), (71, 2.0), (72, 1.5))]  # fmt: skip


@pytest.mark.parametrize("traced", [True, False])
def test_rocprofv3_counts_each_dispatch(tmp_path: Path, traced: bool) -> None:
    whole = rocprof_json()
    run = whole["rocprofiler-sdk-tool"][0]
    run["counters"] = [{"id": {"handle": 71}, "name": "SQ_WAVES"},
                       {"id": {"handle": 72}, "name": "FETCH_SIZE"}]  # fmt: skip
    run["callback_records"] = {"counter_collection": counter_collection()}
    if not traced:
        run["buffer_records"] = {}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(whole))
    found, rows = reported(path)
    waves = rows["gemm", "SQ_WAVES"]
    assert (waves.count, waves.total, waves.smallest, waves.largest) == (2, 10, 4, 6)
    assert rows["gemm", "FETCH_SIZE"].mean == 6
    if not traced:
        assert found.identity.compute == 1800, "the dispatches that were counted are the kernels"


def test_rocpd_counts_each_dispatch(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    rocpd(path)
    assert reported(path)[1] == {}
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE pmc_events (event_id, name, value);
        INSERT INTO pmc_events VALUES (1, 'SQ_WAVES', 5);
    """)
    connection.commit()
    assert any("cannot be read" in fault for fault in reported(path)[0].faults), "no event_id"
    connection.executescript("""
        ALTER TABLE kernels ADD COLUMN event_id;
        UPDATE kernels SET event_id = stack_id;
        INSERT INTO pmc_events VALUES (1, 'SQ_WAVES', 3), (2, 'SQ_WAVES', 1), (2, 'GRBM_COUNT', 9);
    """)
    connection.commit()
    connection.close()
    _, rows = reported(path)
    assert {key: row.total for key, row in rows.items()} == {
        ("gemm", "SQ_WAVES"): 8, ("rcclGenericKernel", "SQ_WAVES"): 1,
        ("rcclGenericKernel", "GRBM_COUNT"): 9,
    }  # fmt: skip


def test_a_trace_without_counters_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mt.write(tmp_path / "a.json", [mt.op("aten::mm", 0, 5), mt.kernel("k", 2, 3)])
    monkeypatch.setattr("ratchet.trace.answers.counters.raw_events", None)
    assert kernel_runs(path, read(path), print) == ()


def test_the_events_of_a_damaged_file_are_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ranges(*((f"kernel {i}", {FMA: i, "of": {"a": [{}, {}]}}) for i in range(400)))  # type: ignore[dict-item]
    whole = mt.text(events, notes=[{"traceEvents": 1}, {}]).encode()
    path = tmp_path / "a.json"
    monkeypatch.setattr("ratchet.trace.read.stream.BLOCK", 1500)
    for text, count, said in (
        (whole, 400, ""),
        (whole[: len(whole) // 2], 201, "cut off"),
        (json.dumps(events).encode(), 400, ""),
        (b'{"traceEvents": []}', 0, ""),
        (whole.replace(b'"kernel 300"', b'"kernel 300'), 300, "damaged"),
    ):
        path.write_bytes(text)
        notes: list[str] = []
        pieces = list(raw_events(path, dict, notes.append))
        found = [event["name"] for piece in pieces for event in piece]
        assert found == [f"kernel {i}" for i in range(len(found))]
        assert len(found) <= count and (len(found) >= 0.9 * count) and said in "".join(notes)
        assert bool(notes) == bool(said)
