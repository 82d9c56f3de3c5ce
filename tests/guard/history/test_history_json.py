"""Results of pytest-benchmark and hyperfine: their figures, their failures, their odd files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Observation
from ratchet.guard.history.csv_file import ImportDefaults
from ratchet.guard.history.formats import read_results

STATS = {"median": 2.0, "mean": 2.5, "q1": 1.5, "q3": 3.0, "rounds": 5}
PYTEST: dict[str, Any] = {
    "machine_info": {
        "node": "build-7",
        "python_implementation": "CPython",
        "python_implementation_version": "3.11.7",
        "cpu": {"count": 2},
    },
    "commit_info": {"id": "ab" * 20, "time": "2026-05-17T09:30:00+02:00", "dirty": False},
    "datetime": "2026-05-18T00:00:00+00:00",
    "version": "5.1.0",
    "benchmarks": [{"name": "test_x[1]", "fullname": "tests/t.py::test_x[1]", "stats": STATS}],
}
RUN: dict[str, Any] = {
    "command": "sleep 0.1",
    "mean": 0.2,
    "median": 0.1,
    "min": 0.05,
    "max": 0.4,
    "user": 0.01,
    "system": 0.02,
    "times": [0.05, 0.1, 0.4],
    "exit_codes": [0, 0, 0],
}


def read(tmp_path: Path, document: object, **more: Any) -> tuple[list[Observation], list[str]]:
    """Read a document as a file; return its figures, and what it left out."""
    path, told = tmp_path / "results.json", list[str]()
    path.write_text(json.dumps(document))
    return list(read_results(path, ImportDefaults(**more), told.append)), told


def test_pytest_benchmark(tmp_path: Path) -> None:
    ((one,), told) = read(tmp_path, PYTEST)
    assert told == [] and one.benchmark == "tests/t.py::test_x[1]"
    assert (one.value, one.low, one.high, one.unit) == (2.0, 1.5, 3.0, "s")
    assert (one.revision, one.committed_at) == ("ab" * 20, "2026-05-17T07:30:00+00:00")
    assert (one.device, one.software) == ("build-7", "CPython 3.11.7")


@pytest.mark.parametrize(
    "commit, revision, time",
    [
        ({"id": "ab" * 20, "dirty": True}, "ab" * 20 + "+changes", "2026-05-18T00:00:00+00:00"),
        ({"id": "unversioned", "time": None}, "mine", "2026-05-18T00:00:00+00:00"),
        ({"id": None, "error": "no repository"}, "mine", "2026-05-18T00:00:00+00:00"),
        ({}, "mine", "2026-05-18T00:00:00+00:00"),
    ],
)
def test_pytest_benchmark_without_a_commit(
    tmp_path: Path, commit: dict[str, object], revision: str, time: str
) -> None:
    ((one,), _) = read(tmp_path, {**PYTEST, "commit_info": commit}, revision="mine")
    assert (one.revision, one.committed_at) == (revision, time)


@pytest.mark.parametrize("stats", [None, {}, {"median": math.nan}, {"median": math.inf}])
def test_a_failed_pytest_benchmark_is_told(tmp_path: Path, stats: object) -> None:
    rows = [*PYTEST["benchmarks"], {"name": "bad", "stats": stats}]
    found, told = read(tmp_path, {**PYTEST, "benchmarks": rows})
    assert len(found) == 1 and told == ["bad: it failed, or has no time"]
    with pytest.raises(HistoryError, match="holds no figure"):
        read(tmp_path, {**PYTEST, "benchmarks": rows[1:]})


def test_one_round_has_no_interval(tmp_path: Path) -> None:
    rows = [{"name": "x", "stats": {"median": 2.0, "q1": 2.0, "q3": 2.0, "rounds": 1}}]
    ((one,), _) = read(tmp_path, {**PYTEST, "benchmarks": rows})
    assert (one.low, one.high) == (None, None)


def test_hyperfine(tmp_path: Path) -> None:
    more = {"revision": "abc", "committed_at": "2026-01-01T00:00:00+00:00", "device": "m"}
    found, told = read(tmp_path, {"results": [{**RUN, "memory_usage_byte": [4, 8, 6]}]}, **more)
    assert told == [] and {one.benchmark for one in found} == {"sleep 0.1"}
    figures = {one.metric: (one.value, one.low, one.high) for one in found}
    assert figures == {
        "time": (0.1, 0.05, 0.4),
        "user": (0.01, None, None),
        "system": (0.02, None, None),
        "memory": (6, None, None),
    }
    assert {(one.revision, one.device) for one in found} == {("abc", "m")}
    assert {one.committed_at for one in found} == {"2026-01-01T00:00:00+00:00"}


def test_hyperfine_tells_parameters_apart(tmp_path: Path) -> None:
    runs = [{**RUN, "command": "mine", "parameters": {"n": str(n)}} for n in (1, 2)]
    found, _ = read(tmp_path, {"results": [*runs, {**RUN, "parameters": {"n": "3"}}]})
    assert {one.benchmark for one in found} == {"mine (n 1)", "mine (n 2)", "sleep 0.1"}


@pytest.mark.parametrize(
    "odd, why",
    [
        ({"exit_codes": [0, 1, None]}, "2 of 3 runs failed"),
        ({"median": None, "mean": None}, "it has no time"),
        ({"median": math.nan, "mean": math.inf}, "it has no time"),
    ],
)
def test_a_command_that_failed_is_told(tmp_path: Path, odd: dict[str, object], why: str) -> None:
    found, told = read(tmp_path, {"results": [RUN, {**RUN, "command": "bad", **odd}]})
    assert len(found) == 3 and told == [f"bad: {why}"]


@pytest.mark.parametrize(
    "document, said",
    [
        ({"results": "many"}, "is not hyperfine's JSON"),
        ({"results": [{}]}, "is not hyperfine's JSON"),
        ({"results": [{**RUN, "median": "fast"}]}, "is not hyperfine's JSON"),
        ({"results": [{**RUN, "median": 10**400}]}, "is not hyperfine's JSON|no figure"),
        ({"results": [{**RUN, "min": 0.3}]}, "lies outside its interval"),
        ({"results": []}, "holds no figure"),
        ({**PYTEST, "benchmarks": {}}, "is not pytest-benchmark's JSON"),
        ({**PYTEST, "commit_info": "abc"}, "is not pytest-benchmark's JSON"),
        ({**PYTEST, "commit_info": {"id": "abc", "time": "soon"}}, "is no time"),
        ({**PYTEST, "benchmarks": [{"name": 1}]}, "is not pytest-benchmark's JSON"),
        ([], "is no JSON of Google-benchmark"),
    ],
)
def test_odd_files_are_told_in_a_line(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(HistoryError, match=said) as error:
        read(tmp_path, document)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tool", "unit", "value", "kept"),
    [
        ("pytest", "iter/sec", 20.5, ("rate", "iter/sec", "higher", 20.5)),
        ("googlecpp", "ns/iter", 2e9, ("time", "s", "lower", 2.0)),
        ("customBiggerIsBetter", "GB", "7.5", ("value", "GB", "higher", 7.5)),
        ("customSmallerIsBetter", "milliseconds", 3, ("value", "milliseconds", "lower", 3.0)),
        ("customSmallerIsBetter", "%", "n/a", None),
    ],
)
@pytest.mark.parametrize("name", ["data.js", "data.json"])
def test_the_history_of_github_action_benchmark(
    tool: str, unit: str, value: object, kept: tuple[object, ...] | None, name: str, tmp_path: Path
) -> None:
    bench = {"name": "t", "value": value, "unit": unit, "range": "stddev: 1"}
    commit = {"id": "d06e217", "timestamp": "2020-01-20T22:42:20-07:00", "message": "m"}
    run = {"commit": commit, "date": 1579585381703, "tool": tool, "benches": [bench]}
    text = json.dumps({"lastUpdate": 1, "entries": {"Python": [run], "C++": []}})
    path = tmp_path / name
    path.write_text(f"window.BENCHMARK_DATA = {text};\n" if name.endswith("js") else text)
    told: list[str] = []
    if kept is None:
        with pytest.raises(HistoryError, match="Python: t: it has no value"):
            list(read_results(path, ImportDefaults(), told.append))
        return
    (one,) = read_results(path, ImportDefaults())
    assert (one.metric, one.unit, one.better, one.value) == kept
    assert (one.benchmark, one.revision) == ("Python: t", "d06e217")
    assert one.committed_at.startswith("2020-01-21T05:42:20")
