"""Results of other tools in JSON: Google-benchmark, pytest-benchmark, hyperfine, and the history
that github-action-benchmark keeps (`data.js`).
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from ratchet.base import Json, files
from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Observation
from ratchet.base.serialise import encoded
from ratchet.guard.history.csv_file import (
    Exported,
    ImportDefaults,
    as_utc,
    exported,
    imported,
    is_rate,
)

Decoded = TypeVar("Decoded")
LeftOut = Callable[[str], None]
"""Hears of each result that a file names and that has no figure, with the reason."""


def read_json(
    path: Path, defaults: ImportDefaults, left_out: LeftOut = lambda _: None
) -> Iterator[Observation]:
    """Yield the figures of a JSON file, whose keys tell which tool wrote it.

    `left_out` hears of each benchmark without a figure. Raises HistoryError: the file is none of
    these tools'.
    """
    try:
        # pytest-benchmark writes NaN, which Python's reader alone takes.
        text = path.read_text(encoding="utf-8-sig")
        document = json.loads(text.strip().removeprefix(ACTION_ASSIGNED).removesuffix(";"))
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryError(f"{path} cannot be read as JSON: {error}") from error
    keys = document.keys() if isinstance(document, dict) else ()
    if "machine_info" in keys or "commit_info" in keys:
        return _read_pytest(path, document, defaults, left_out)
    if "results" in keys:
        return _read_hyperfine(path, document, defaults, left_out)
    if "benchmarks" in keys:
        return _read_google(path, document, defaults, left_out)
    if "entries" in keys:
        return _read_action(path, document, defaults, left_out)
    raise HistoryError(
        f"{path} is no JSON of Google-benchmark, pytest-benchmark, hyperfine or "
        "github-action-benchmark: give one of these, or a CSV file"
    )


def _converted(path: Path, document: Json, kind: type[Decoded], what: str) -> Decoded:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise HistoryError(f"{path} is not {what}: {error}") from error


# pytest-benchmark: `pytest --benchmark-json FILE`; all times are in seconds.


class PytestStats(msgspec.Struct, kw_only=True):
    median: float | None = None
    mean: float | None = None
    q1: float | None = None
    q3: float | None = None
    rounds: int | None = None


class PytestRow(msgspec.Struct, kw_only=True):
    """One benchmark; one that failed has no statistics, or none that are finite."""

    name: str
    fullname: str = ""
    stats: PytestStats | None = None


class PytestCommit(msgspec.Struct, frozen=True, kw_only=True):
    id: str | None = None
    time: str | None = None
    dirty: bool = False


class PytestFile(msgspec.Struct, kw_only=True):
    benchmarks: list[PytestRow]
    machine_info: dict[str, object] = {}
    commit_info: PytestCommit = PytestCommit()
    datetime: str | None = None


UNVERSIONED = ("", "unversioned", "unknown")  # Names that stand for no commit


def _read_pytest(
    path: Path, document: Json, defaults: ImportDefaults, left_out: LeftOut
) -> Iterator[Observation]:
    """Yield the median time of each benchmark, between its quartiles."""
    found = _converted(path, document, PytestFile, "pytest-benchmark's JSON")
    machine, commit = found.machine_info, found.commit_info
    revision = defaults.revision
    if (known := commit.id or "") not in UNVERSIONED:
        revision = f"{known}+changes" if commit.dirty else known
    time = commit.time or found.datetime
    versions = ("python_implementation", "python_implementation_version")
    software = " ".join(str(machine[name]) for name in versions if machine.get(name))
    for row in found.benchmarks:
        name, stats = row.fullname or row.name, row.stats or PytestStats()
        value = _first_finite(stats.median, stats.mean)
        if value is None:
            left_out(f"{name}: it failed, or has no time")
            continue
        low, high = (_first_finite(end) for end in (stats.q1, stats.q3))
        if stats.rounds == 1:
            low = high = None
        yield imported(
            path,
            f"{path}: {name}",
            value,
            str(machine.get("node") or defaults.device),
            benchmark=name,
            revision=revision,
            committed_at=as_utc(time, str(path)) if time else defaults.committed_at,
            low=low,
            high=high,
            software=software,
        )


# hyperfine: `hyperfine --export-json FILE`; it names neither commit, time nor machine.


class HyperfineRow(msgspec.Struct, kw_only=True):
    """One command; with `--ignore-failure` its runs may have failed."""

    command: str
    median: float | None = None
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    user: float | None = None
    system: float | None = None
    exit_codes: list[int | None] = []
    memory_usage_byte: list[int] | None = None
    parameters: dict[str, str | int | float] = {}


class HyperfineFile(msgspec.Struct, kw_only=True):
    results: list[HyperfineRow]


def _read_hyperfine(
    path: Path, document: Json, defaults: ImportDefaults, left_out: LeftOut
) -> Iterator[Observation]:
    """Yield the median time of each command, its CPU times, and its memory if it was measured.

    A command with a run that failed has no figure. One that stands there several times is told
    apart by its parameters.
    """
    found = _converted(path, document, HyperfineFile, "hyperfine's JSON")
    counts = Counter(row.command for row in found.results)
    for row in found.results:
        named = ", ".join(f"{key} {value}" for key, value in row.parameters.items())
        name = f"{row.command} ({named})" if counts[row.command] > 1 and named else row.command
        failed = sum(code != 0 for code in row.exit_codes)
        value = _first_finite(row.median, row.mean)
        if failed or value is None:
            why = f"{failed} of {len(row.exit_codes)} runs failed" if failed else "it has no time"
            left_out(f"{name}: {why}")
            continue
        memory = median(row.memory_usage_byte) if row.memory_usage_byte else None
        figures = (
            ("time", "s", value, _first_finite(row.min), _first_finite(row.max)),
            ("user", "s", _first_finite(row.user), None, None),
            ("system", "s", _first_finite(row.system), None, None),
            ("memory", "B", memory, None, None),
        )
        for metric, unit, figure, low, high in figures:
            if figure is None:
                continue
            yield imported(
                path,
                f"{path}: {name}",
                float(figure),
                defaults.device,
                benchmark=name,
                metric=metric,
                unit=unit,
                revision=defaults.revision,
                committed_at=defaults.committed_at,
                low=low,
                high=high,
            )


def _first_finite(*values: float | None) -> float | None:
    return next((one for one in values if one is not None and math.isfinite(one)), None)


# Google-benchmark: `--benchmark_format=json`.

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class GoogleRow(msgspec.Struct, kw_only=True):
    """One run of one benchmark, or an aggregate over its repetitions."""

    name: str
    run_name: str = ""
    run_type: str = "iteration"
    aggregate_name: str = ""
    real_time: float | None = None
    cpu_time: float | None = None
    time_unit: str = "ns"
    error_occurred: bool = False
    error_message: str = ""
    skipped: bool = False
    skip_message: str = ""

    @property
    def fault(self) -> str:
        """Return why the run has no time; empty if it has one."""
        if self.error_occurred:
            return f"it failed ({self.error_message or 'without a message'})"
        if self.skipped:
            return f"it was skipped ({self.skip_message or 'without a message'})"
        return "" if self.real_time is not None or self.cpu_time is not None else "it has no time"


class GoogleFile(msgspec.Struct, kw_only=True):
    benchmarks: list[GoogleRow]
    context: dict[str, object] = {}


def _read_google(
    path: Path, document: Json, defaults: ImportDefaults, left_out: LeftOut
) -> Iterator[Observation]:
    """Yield the real and CPU time of each benchmark: the median of its repetitions.

    The commit is the `revision` (or `commit`, `git_hash`) that `--benchmark_context` put there, or
    the default.
    """
    found = _converted(path, document, GoogleFile, "Google-benchmark's JSON")
    context = found.context
    named = (context.get(key) for key in ("revision", "commit", "git_hash"))
    revision = next((str(one) for one in named if one), defaults.revision)
    time = defaults.committed_at or as_utc(str(context.get("date", "")), str(path))
    for row in found.benchmarks:
        if row.fault:
            left_out(f"{row.name}: {row.fault}")
    for name, rows in _by_name(found.benchmarks).items():
        for metric in ("real_time", "cpu_time"):
            times = [_seconds(one, metric, path) for one in rows]
            known = [one for one in times if one is not None]
            if not known:
                continue
            yield imported(
                path,
                f"{path}: {name}",
                median(known),
                str(context.get("host_name") or defaults.device),
                benchmark=name,
                metric=metric,
                revision=revision,
                committed_at=time,
                low=min(known) if len(known) > 1 else None,
                high=max(known) if len(known) > 1 else None,
                software=str(context.get("library_version", "")),
            )


# github-action-benchmark: the branch that its action writes holds `data.js` with every commit.

ACTION_ASSIGNED = "window.BENCHMARK_DATA = "


class ActionBench(msgspec.Struct, kw_only=True):
    name: str
    value: float | str | None = None
    unit: str = ""


class ActionCommit(msgspec.Struct, kw_only=True):
    id: str
    timestamp: str = ""


class ActionRun(msgspec.Struct, kw_only=True):
    """The results of one commit."""

    commit: ActionCommit
    date: float | None = None  # When the action ran, in ms since 1970
    tool: str = ""
    benches: list[ActionBench]


class ActionFile(msgspec.Struct, kw_only=True):
    entries: dict[str, list[ActionRun]]


def _read_action(
    path: Path, document: Json, defaults: ImportDefaults, left_out: LeftOut
) -> Iterator[Observation]:
    """Yield each commit's values; of several suites, the name stands before the benchmark's.

    More is better for a rate (`iter/sec`) and where the tool is `customBiggerIsBetter`.
    """
    found = _converted(path, document, ActionFile, "github-action-benchmark's JSON")
    for suite, runs in found.entries.items():
        for run in runs:
            time = run.commit.timestamp or (str(run.date / 1000) if run.date else "")
            for row in run.benches:
                name = f"{suite}: {row.name}" if len(found.entries) > 1 else row.name
                try:
                    value = float(row.value if row.value is not None else math.nan)
                except ValueError:
                    value = math.nan
                if not math.isfinite(value):
                    left_out(f"{name}: it has no value")
                    continue
                base = row.unit.partition("/")[0] if row.unit.endswith(("/iter", "/op")) else ""
                base = base or row.unit
                is_more = run.tool == "customBiggerIsBetter" or is_rate(row.unit)
                yield imported(
                    path,
                    f"{path}: {name}",
                    value * _SECONDS.get(base, 1.0),
                    defaults.device,
                    benchmark=name,
                    metric="rate" if is_rate(row.unit) else "time" if base in _SECONDS else "value",
                    unit="s" if base in _SECONDS else row.unit,
                    better="higher" if is_more else "lower",
                    revision=run.commit.id,
                    committed_at=as_utc(time, str(path)) if time else defaults.committed_at,
                )


def write_google(path: Path, observations: Iterable[Observation]) -> Exported:
    """Write the times of the newest commit as Google-benchmark JSON.

    Its `compare.py` reads the file. Figures that are no time, and those of other commits and
    machines than the newest, are left out.
    """
    given = list(observations)
    times = [one for one in given if one.unit == "s" and math.isfinite(one.value)]
    if not times:
        raise HistoryError("no figure is a time in seconds: Google-benchmark's JSON holds no other")
    newest = max(times, key=lambda one: one.committed_at)

    def commit(one: Observation) -> tuple[str, str]:
        return one.device, one.revision or one.committed_at

    rows = [one for one in times if commit(one) == commit(newest)]
    document = {
        "context": {
            "executable": "ratchet history export",
            "date": newest.committed_at,
            "host_name": newest.device,
            "revision": newest.revision,
            "library_version": newest.software,
        },
        "benchmarks": [
            dict.fromkeys(("name", "run_name"), f"{one.benchmark}/{one.metric}")
            | dict.fromkeys(("real_time", "cpu_time"), one.value * 1e9)
            | {"run_type": "iteration", "iterations": 1, "time_unit": "ns"}
            for one in rows
        ],
    }
    files.write_whole(path, encoded(document, indent=1))
    why = "Google-benchmark's JSON holds only the times of one commit on one machine"
    return exported(given, rows, why)


def _by_name(rows: Iterable[GoogleRow]) -> dict[str, list[GoogleRow]]:
    found: dict[str, list[GoogleRow]] = defaultdict(list)
    aggregates: dict[str, list[GoogleRow]] = {}
    for row in rows:
        name = row.run_name or row.name
        if row.fault:
            continue
        if row.run_type == "iteration":
            found[name].append(row)
        elif row.aggregate_name == "median":
            aggregates[name] = [row]
    return {**aggregates, **found}


def _seconds(row: GoogleRow, metric: str, path: Path) -> float | None:
    value = row.real_time if metric == "real_time" else row.cpu_time
    if row.time_unit not in _SECONDS:
        raise HistoryError(f"{path}: {row.name!r} is in {row.time_unit!r}, not in ns, us, ms or s")
    return None if value is None else value * _SECONDS[row.time_unit]
