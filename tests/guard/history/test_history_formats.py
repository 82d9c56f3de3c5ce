"""Files with results: what is written is read back, and what is wrong is said in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from full_disk import full_disk
from history_rows import noisy, revision_of, rows

from ratchet.base.errors import FileError, HistoryError
from ratchet.base.ledger.books import Better, Observation
from ratchet.guard.history.csv_file import ImportDefaults
from ratchet.guard.history.formats import read_results, write_results
from ratchet.guard.history.show import left_out_words

DEFAULTS = ImportDefaults()


def _read(path: Path, defaults: ImportDefaults = DEFAULTS) -> list[Observation]:
    return list(read_results(path, defaults))


def test_csv_comes_back(tmp_path: Path) -> None:
    written = [replace(one, low=0.05, high=2.0) for one in rows(noisy(0))]
    assert write_results(tmp_path / "a.csv", written).results == 100
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
        ("benchmark,metric,value\na,m,1\nb\n", "bad.csv:3: the line has 1 of 3 fields"),
        ("benchmark,value\na,1,2,3\n", "bad.csv:2: the line has 4 of 2 fields"),
        ("benchmark,value\na,1\n\nb,\n", "bad.csv:4: the line has no value"),
        ("commit,speed\nabc,\n", "bad.csv:2: the line has no value"),
        ("benchmark,value,low,high\na,3,1,2\n", "bad.csv:2: the value 3.0 lies outside"),
        ("benchmark,value,low,high\na,0.5,1,\n", "low 1.0 to high None"),
        ("benchmark,value,value\na,1,2\n", "bad.csv:1: the columns 'value' and 'value'"),
        ("commit,sha,value\na,b,1\n", "bad.csv:1: the columns 'commit' and 'sha' are both"),
        ("commit,speed,speed\na,1,2\n", "'speed' and 'speed'"),
        ("benchmark;value\na;1\n", "separated by ';': write commas"),
        ("benchmark\tvalue\na\t1\n", "write commas"),
        ("benchmark,value,\na,1,\n", "column 3 has no name"),
        ("benchmark,value\n", "holds no figure"),
        ('benchmark,value\n"a,1\n', "cannot be read as CSV"),
        ("benchmark,value,time\nx,1,0001-01-01T00:00:00+14:00\n", "is no time"),
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
    assert write_results(tmp_path / "results", written).results == 5
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
    told: list[str] = []
    first, second = read_results(tmp_path, ImportDefaults(), told.append)
    assert told == ["a.time_x(2): it failed at abc", "a.track_y: it failed at abc"]
    assert (first.benchmark, first.value, first.low, first.high) == ("a.time_x(1)", 1.0, 0.9, 1.1)
    assert first.unit == "s"
    assert (second.benchmark, second.value) == ("a.NaN", 2.0)


def test_an_asv_folder_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "benchmarks.json").write_text('{"a.time_x": {"unit": "seconds"}, "version": 1}')
    (tmp_path / "m" / "abc-py2.7-numpy.json").write_text(
        '{"commit_hash": "abc", "date": 1418852870000, "version": 1, "results": {'
        '"a.time_x": 0.5, "b": null, "c": {"params": [["1", "2"]], "result": [3.0, null], '
        '"stats": [{"ci_99": [2.5, 3.5], "q_25": 2.9}, null]}}}'
    )
    told: list[str] = []
    plain, parameters = read_results(tmp_path, ImportDefaults(), told.append)
    assert (plain.value, plain.unit, plain.low, plain.software) == (0.5, "s", None, "py2.7-numpy")
    assert (parameters.benchmark, parameters.value) == ("c(1)", 3.0)
    assert (parameters.low, parameters.high) == (2.5, 3.5)
    assert told == ["b: it failed at abc", "c(2): it failed at abc"]


@pytest.mark.parametrize(
    ("sort", "unit", "better"),
    [("track", "qps", "higher"), ("track", "GB/s", "higher"), ("track", "Accuracy", "default"),
     ("time", "seconds", "lower"), ("peakmem", "bytes", "lower")],
)  # fmt: skip
@pytest.mark.parametrize("default", ["lower", "higher"])
def test_what_asv_tracks_has_no_direction_of_its_own(
    sort: str, unit: str, better: str, default: Better, tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "benchmarks.json").write_text(json.dumps({"b": {"unit": unit, "type": sort}}))
    (tmp_path / "m" / "a-e.json").write_text(
        '{"commit_hash": "a", "date": 1418852870000, "version": 1, "results": {"b": 0.5}}'
    )
    (one,) = read_results(tmp_path, ImportDefaults(better=default))
    assert one.better == (default if better == "default" else better)


def test_google_benchmark_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    assert write_results(path, rows(noisy(2, count=4))).results == 1
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


def test_google_benchmark_runs_without_a_time_are_told(tmp_path: Path) -> None:
    run = {"run_type": "iteration", "real_time": 1, "cpu_time": 1}
    failed = {"name": "bad", "error_occurred": True, "error_message": "boom"}
    passed_over = {"name": "not here", "skipped": True, "skip_message": "no GPU"}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"benchmarks": [{"name": "ok", **run}, failed, passed_over]}))
    told: list[str] = []
    found = list(read_results(path, ImportDefaults(committed_at="2026-01-01"), told.append))
    assert {one.benchmark for one in found} == {"ok"}
    assert told == ["bad: it failed (boom)", "not here: it was skipped (no GPU)"]
    path.write_text(json.dumps({"benchmarks": [failed]}))
    with pytest.raises(HistoryError, match=r"no figure \(bad: it failed \(boom\)\)"):
        list(read_results(path, ImportDefaults(committed_at="2026-01-01")))


def test_what_a_format_cannot_hold_is_counted(tmp_path: Path) -> None:
    many = [one for at in range(18) for one in rows([1.0, 2.0], benchmark=f"b{at}", unit="B")]
    newest = replace(rows([3.0] * 3)[-1], benchmark="newest")
    found = write_results(tmp_path / "g.json", [*many, newest])
    assert (found.results, found.series) == (1, 1)
    assert (found.left_out_results, found.left_out_series) == (36, 18)
    assert "18 of 19 series" in left_out_words(found) and "one commit" in left_out_words(found)
    whole = write_results(tmp_path / "all.csv", [*many, newest])
    assert (whole.results, whole.left_out_results, left_out_words(whole)) == (37, 0, "")


def test_names_that_asv_cannot_tell_apart_stay_apart(tmp_path: Path) -> None:
    names = ("mm[1,2]", "mm(1, 2)", "mm 1 2")
    written = [one for name in names for one in rows([1.0, 2.0], benchmark=name)]
    found = write_results(tmp_path / "results", written)
    assert (found.series, found.left_out_series, found.why) == (3, 0, "")
    assert len({one.benchmark for one in _read(tmp_path / "results")}) == 3


def test_nothing_to_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no results to write"):
        write_results(tmp_path / "a.csv", [])
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("name", ["old.csv", "old.json", "old"])
def test_a_disk_that_fills_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    written = [one for at in range(500) for one in rows([1.0], benchmark=f"b{at}")]
    path = tmp_path / name
    write_results(path, written)
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    changed = [replace(one, value=2.0) for one in written]
    with full_disk(8192), pytest.raises(FileError, match=r"cannot be written .*: make room"):
        write_results(path, changed)
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


@pytest.mark.parametrize("content", ["[" * 100_000, '{"context": ' + "[" * 100_000, "\xff", "null"])
def test_json_that_is_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "g.json").write_text(content, encoding="latin-1")
    with pytest.raises(HistoryError, match=r"cannot be read as JSON|is no JSON of G"):
        _read(tmp_path / "g.json")
    (tmp_path / "asv" / "m").mkdir(parents=True)
    (tmp_path / "asv" / "m" / "abc.json").write_text(content, encoding="latin-1")
    with pytest.raises(HistoryError, match="is not a file of asv results"):
        _read(tmp_path / "asv")


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for path, said in (
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "x.json", "is no JSON of Google-benchmark"),
        (tmp_path, "no asv results"),
    ):
        with pytest.raises(HistoryError, match=said):
            _read(path)
