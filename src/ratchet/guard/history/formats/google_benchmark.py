"""Google-benchmark's JSON (`--benchmark_format=json`): one run, of one commit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import msgspec

from ratchet.base import files
from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Observation
from ratchet.base.serialise import encoded
from ratchet.guard.history.formats.csv_file import ImportDefaults, as_utc
from ratchet.guard.history.formats.figures import Exported, exported

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


class GoogleFile(msgspec.Struct, kw_only=True):
    benchmarks: list[GoogleRow]
    context: dict[str, object] = {}


def read_google(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    """Yield the real and CPU time of each benchmark: the median of its repetitions.

    The commit is the `revision` (or `commit`, `git_hash`) that `--benchmark_context` put there, or
    the default.

    Raises:
        HistoryError: the file is not Google-benchmark's.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=GoogleFile)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise HistoryError(f"{path} is not Google-benchmark's JSON: {error}") from error
    context = found.context
    named = (context.get(key) for key in ("revision", "commit", "git_hash"))
    revision = next((str(one) for one in named if one), defaults.revision)
    time = defaults.committed_at or as_utc(str(context.get("date", "")), str(path))
    for name, rows in _by_name(found.benchmarks).items():
        for metric in ("real_time", "cpu_time"):
            times = [_seconds(one, metric, path) for one in rows]
            known = [one for one in times if one is not None]
            if not known:
                continue
            yield Observation(
                benchmark=name,
                metric=metric,
                unit="s",
                better="lower",
                revision=revision,
                committed_at=time,
                value=median(known),
                low=min(known) if len(known) > 1 else None,
                high=max(known) if len(known) > 1 else None,
                device=str(context.get("host_name") or defaults.device)[:64],
                software=str(context.get("library_version", ""))[:64],
                source=str(path),
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
    at = (newest.revision, newest.device, newest.committed_at if not newest.revision else "")
    rows = [
        one
        for one in times
        if at == (one.revision, one.device, one.committed_at if not one.revision else "")
    ]
    document = {
        "context": {
            "date": newest.committed_at,
            "host_name": newest.device,
            "revision": newest.revision,
            "library_version": newest.software,
        },
        "benchmarks": [
            {
                "name": f"{one.benchmark}/{one.metric}",
                "run_name": f"{one.benchmark}/{one.metric}",
                "run_type": "iteration",
                "iterations": 1,
                "real_time": one.value * 1e9,
                "cpu_time": one.value * 1e9,
                "time_unit": "ns",
            }
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
        if row.error_occurred:
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
