"""Files with results: what is written is read back, and what is wrong is said in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from history_rows import noisy, revision_of, rows

from ratchet.errors import HistoryError
from ratchet.history.formats.choose import read_results, write_results
from ratchet.history.formats.csv_file import ImportDefaults
from ratchet.ledger.observations import Observation

DEFAULTS = ImportDefaults()


def _read(path: Path, defaults: ImportDefaults = DEFAULTS) -> list[Observation]:
    return list(read_results(path, defaults))


def test_csv_comes_back(tmp_path: Path) -> None:
    written = [replace(one, low=0.5, high=2.0) for one in rows(noisy(0))]
    assert write_results(tmp_path / "a.csv", written) == 100
    again = [replace(one, source="test") for one in _read(tmp_path / "a.csv")]
    assert again == written


def test_csv_with_a_column_for_each_metric(tmp_path: Path) -> None:
    path = tmp_path / "suite.csv"
    path.write_text("time,commit,speed,size\n1767225600,abc,1.5,10\n2026-01-02,abd,,11\n")
    found = [(one.benchmark, one.metric, one.revision, one.value) for one in _read(path)]
    assert found == [
        ("suite", "speed", "abc", 1.5),
        ("suite", "size", "abc", 10.0),
        ("suite", "size", "abd", 11.0),
    ]
    assert _read(path)[0].committed_at == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("time,commit\n", "no column 'value'"),
        ("benchmark,value\nx,fast\n", "bad.csv:2: 'fast' is no number"),
        ("benchmark,value,better\nx,1,more\n", "write lower or higher"),
        ("benchmark,value,time\nx,1,yesterday\n", "is no time"),
    ],
)
def test_csv_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(HistoryError, match=said):
        _read(tmp_path / "bad.csv")


def test_an_asv_folder_comes_back(tmp_path: Path) -> None:
    written = rows(noisy(1, count=5), benchmark="suite.Step", metric="run")
    assert write_results(tmp_path / "results", written) == 5
    again = _read(tmp_path / "results")
    assert sorted(one.value for one in again) == sorted(one.value for one in written)
    assert {one.benchmark for one in again} == {"suite_Step.time_run"}
    assert {(one.unit, one.device) for one in again} == {("s", "machine")}


def test_an_asv_folder_with_parameters_and_failures(tmp_path: Path) -> None:
    machine = tmp_path / "m"
    machine.mkdir()
    (machine / "machine.json").write_text("{}")
    (tmp_path / "benchmarks.json").write_text(
        json.dumps({"a.time_x": {"unit": "seconds"}, "version": 2})
    )
    (machine / "abc-env.json").write_text(
        '{"commit_hash": "abc", "date": 1767225600000, "env_name": "py3.11", "version": 2,'
        '"result_columns": ["result", "params", "stats_ci_99_a", "stats_ci_99_b"],'
        '"params": {"machine": "m"},'
        '"results": {"a.time_x": [[1.0, null, NaN], [["1", "2", "3"]], [0.9, null, null],'
        " [1.1, null, null]], "
        '"a.track_y": [null], "a.NaN": [[2.0]]}}'
    )
    first, second = _read(tmp_path)
    assert (first.benchmark, first.value, first.low, first.high) == ("a.time_x(1)", 1.0, 0.9, 1.1)
    assert first.unit == "s"
    assert (second.benchmark, second.value) == ("a.NaN", 2.0)


def test_google_benchmark_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    assert write_results(path, rows(noisy(2, count=4))) == 1
    found = _read(path)
    assert {one.revision for one in found} == {revision_of(3)}
    assert found[0].value == pytest.approx(noisy(2, count=4)[3])


def test_google_benchmark_repetitions(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    runs = [
        {"name": "BM", "run_name": "BM", "run_type": "iteration", "real_time": t, "time_unit": "us"}
        for t in (3.0, 1.0, 2.0)
    ]
    mean = {"name": "BM_mean", "run_name": "BM", "run_type": "aggregate", "real_time": 9.0}
    context = {"date": "2026-01-01T00:00:00+00:00", "host_name": "h"}
    path.write_text(json.dumps({"context": context, "benchmarks": [*runs, mean]}))
    (one,) = _read(path, ImportDefaults(revision="abc"))
    assert (one.value, one.low, one.high) == pytest.approx((2e-6, 1e-6, 3e-6))
    assert (one.revision, one.device) == ("abc", "h")


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for path, said in (
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "x.json", "not Google-benchmark"),
        (tmp_path, "no asv results"),
    ):
        with pytest.raises(HistoryError, match=said):
            _read(path)
