"""Files with results over commits: an asv results folder, and which reader a file has."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ratchet.base import files
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
    read_csv,
    series_of,
    write_csv,
)
from ratchet.guard.history.json_files import LeftOut, read_json, write_google

# An asv results folder: `benchmarks.json`, and for each machine a file per commit.
#
# The layout is asv's "Benchmark suite layout and file formats": version 2 of its results files has
# a row of columns for each benchmark, version 1 (before asv 0.5) a value or an object.

Decoded = TypeVar("Decoded")
_UNITS = {"seconds": "s", "bytes": "B"}


class AsvResults(msgspec.Struct, kw_only=True):
    """One file of results; asv writes NaN and lists of parameters as they are."""

    commit_hash: str
    date: float  # Unix time in milliseconds
    result_columns: list[str] = []
    results: dict[str, object]
    env_name: str = ""
    python: str = ""
    requirements: dict[str, str | None] = {}
    params: dict[str, object] = {}
    version: int = 2


def read_asv(
    folder: Path, defaults: ImportDefaults, left_out: LeftOut = lambda _: None
) -> Iterator[Observation]:
    """Yield the figures of an asv results folder.

    asv does not say whether more of what it tracks is better: the default and a rate's unit do.
    `left_out` hears of each benchmark that failed. One that asv skipped (NaN) has no result. Raises
    HistoryError: the folder holds no results, or a file is not as asv writes it.
    """
    units = _units(folder / "benchmarks.json")
    found = sorted(
        path
        for path in folder.glob("*/*.json")
        if path.name not in ("machine.json", "benchmarks.json")
    )
    if not found:
        raise HistoryError(
            f"{folder} holds no asv results: give the folder that has benchmarks.json and one "
            "folder for each machine"
        )
    for path in found:
        yield from _of_file(path, units, defaults, left_out)


def write_asv(folder: Path, observations: Iterable[Observation]) -> Exported:
    """Write figures as an asv results folder, for `asv publish`: all of its files, or none.

    A benchmark's name is made a Python name, its metric the last part. asv holds one figure of a
    benchmark at a commit: of several, the last is written.
    """
    given = list(observations)
    kept = {
        (one.device, one.revision, one.software, series_of(one)): one
        for one in given
        if one.revision
    }
    if not kept:
        raise HistoryError("no figure has a commit, and asv's files need one: nothing to write")
    names = _asv_names(kept.values())
    by_file: dict[tuple[str, str, str], list[Observation]] = defaultdict(list)
    for (device, revision, software, _), one in kept.items():
        by_file[device, revision, software].append(one)
    units = {names[series_of(one)]: _described(names[series_of(one)], one) for one in kept.values()}
    documents: dict[Path, dict[str, object]] = {folder / "benchmarks.json": {**units, "version": 2}}
    revisions = {revision for _, revision, _ in by_file}
    for (device, revision, software), rows in by_file.items():
        machine, environment = folder / _safe(device), _safe(software) or "existing"
        documents[machine / "machine.json"] = {"machine": _safe(device), "version": 1}
        # asv names files by 8 digits; names that would be one file keep all of theirs.
        alike = sum(other[:8] == revision[:8] for other in revisions)
        name = revision[:8] if alike == 1 else _safe(revision)
        documents[machine / f"{name}-{environment}.json"] = _results(rows, environment, names)
    files.make_folder(folder)
    for path in documents:
        files.make_folder(path.parent)
    files.write_all({path: encoded(document, indent=1) for path, document in documents.items()})
    return exported(given, list(kept.values()), "asv's files hold one figure of each commit")


def _results(
    rows: Sequence[Observation], environment: str, names: Mapping[str, str]
) -> dict[str, object]:
    """Return the file of one commit on one machine."""
    time = rows[-1].committed_at
    return {
        "commit_hash": rows[0].revision,
        "env_name": environment,
        "date": int(datetime.fromisoformat(time).timestamp() * 1000) if time else 0,
        "params": {"machine": _safe(rows[0].device)},
        "python": "",
        "requirements": {},
        "env_vars": {},
        "result_columns": ["result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"],
        "results": {
            names[series_of(one)]: [[one.value], [], "1", [one.low], [one.high]] for one in rows
        },
        "durations": {},
        "version": 2,
    }


def _described(name: str, one: Observation) -> dict[str, object]:
    """Return a benchmark's entry in benchmarks.json."""
    return {
        **{"code": "", "name": name, "param_names": [], "params": []},
        "type": "time" if one.unit == "s" else "track",
        "unit": {"s": "seconds", "B": "bytes"}.get(one.unit, one.unit or "unit"),
        "version": "1",
    }


def _asv_names(rows: Iterable[Observation]) -> dict[str, str]:
    """Name each series; those of one machine whose names would be one are numbered."""
    found: dict[str, str] = {}
    taken: dict[tuple[str, str], str] = {}
    for one in sorted(rows, key=series_of):
        plain = (one.benchmark, one.metric)
        if plain not in taken:
            words = re.sub(r"\W+", "_", one.benchmark).strip("_")
            kind, metric = "time" if one.unit == "s" else "track", re.sub(r"\W+", "_", one.metric)
            name, count = f"{words}.{kind}_{metric}", 1
            while (numbered := f"{name}_{count}" if count > 1 else name) in taken.values():
                count += 1
            taken[plain] = numbered
        found[series_of(one)] = taken[plain]
    return found


def _of_file(
    path: Path, units: dict[str, tuple[str, str]], defaults: ImportDefaults, left_out: LeftOut
) -> Iterator[Observation]:
    found = _decoded(path, AsvResults)
    if found.version > 1 and "result" not in found.result_columns:
        raise HistoryError(f"{path} has no column 'result': write it again with asv")
    machine = str(found.params.get("machine") or path.parent.name)
    environment = found.env_name or path.stem.partition("-")[2]
    for name, row in found.results.items():
        cells = _cells(row, found.result_columns)
        unit, sort = units.get(name, ("", ""))
        tracked = "higher" if is_rate(unit) else defaults.better
        values = _listed(cells.get("result"))
        combinations = _combinations(cells.get("params") or [], path)
        lows, highs = (_listed(cells.get(f"stats_ci_99_{end}")) for end in "ab")
        for place, value in enumerate(values):
            which = combinations[place] if place < len(combinations) else str(place)
            benchmark = f"{name}({which})" if which else name
            if value is None:
                left_out(f"{benchmark}: it failed at {found.commit_hash[:10]}")
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            yield imported(
                path.parent.parent,
                f"{path}: {benchmark}",
                float(value),
                machine,
                benchmark=benchmark,
                metric="value",
                unit=_UNITS.get(unit, unit),
                better=tracked if sort == "track" else "lower",
                revision=found.commit_hash,
                committed_at=as_utc(str(found.date / 1000), str(path)),
                low=_finite(lows, place),
                high=_finite(highs, place),
                software=environment,
            )


def _combinations(params: object, path: Path) -> list[str]:
    """Name the combinations of a benchmark's parameters, in the order of its results."""
    if not params:
        return [""]
    if not isinstance(params, list) or not all(isinstance(one, list) for one in params):
        raise HistoryError(f"{path} is not a file of asv results: params are not lists of texts")
    return [", ".join(map(str, one)) for one in itertools.product(*params)]


def _units(path: Path) -> dict[str, tuple[str, str]]:
    """Return the unit and the type (`time`, `track`, ...) of each benchmark."""
    if not path.exists():
        return {}
    found = _decoded(path, dict[str, object])
    return {
        name: (str(one.get("unit", "")), str(one.get("type", "")))
        for name, one in found.items()
        if isinstance(one, dict)
    }


def _decoded(path: Path, kind: type[Decoded]) -> Decoded:
    # asv writes NaN, which Python's reader alone takes.
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise HistoryError(f"{path} is not a file of asv results: {error}") from error


def _cells(row: object, columns: Sequence[str]) -> dict[str, object]:
    """Return a benchmark's columns, of version 1 under version 2's names."""
    if isinstance(row, list):
        return dict(zip(columns, row, strict=False))
    if not isinstance(row, dict):
        return {"result": row}
    stats = [
        one.get("ci_99") if isinstance(one, dict) else None for one in _listed(row.get("stats"))
    ]
    ends = [one if isinstance(one, list) and len(one) == 2 else (None, None) for one in stats]
    return {**row, "stats_ci_99_a": [a for a, _ in ends], "stats_ci_99_b": [b for _, b in ends]}


def _listed(cell: object) -> list[object]:
    return cell if isinstance(cell, list) else [cell]


def _finite(values: list[object], place: int) -> float | None:
    found = values[place] if place < len(values) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(4096)


ResultsFormat = Literal["csv", "asv", "google"]


def read_results(
    path: Path, defaults: ImportDefaults, left_out: LeftOut | None = None
) -> Iterator[Observation]:
    """Return the figures of a file, of which the first is read.

    A folder is asv's, .json and .js what `read_json` takes, all else CSV.

    `left_out` hears of each result that the file names and that has no figure. Raises HistoryError:
    the file is in none of these formats, or holds no figure.
    """
    faults: list[str] = []

    def leave_out(fault: str) -> None:
        faults.append(fault)
        if left_out is not None:
            left_out(fault)

    if path.is_dir():
        found = read_asv(path, defaults, leave_out)
    elif why := files.why_not_file(path):
        raise HistoryError(f"{path} {why}: give a CSV or JSON file, or an asv results folder")
    elif _is_binary(path):  # it may be one line of gigabytes
        raise HistoryError(f"{path} is binary: give a CSV or JSON file, or an asv results folder")
    elif path.suffix.lower() in (".json", ".js"):
        found = read_json(path, defaults, leave_out)
    else:
        found = read_csv(path, defaults)
    first = next(found, None)
    if first is None:
        why = f" ({faults[0]})" if faults else ""
        raise HistoryError(f"{path} holds no figure{why}: nothing to read")
    return itertools.chain([first], found)


def write_results(
    path: Path, observations: Iterable[Observation], format: ResultsFormat | None = None
) -> Exported:
    """Write figures; the format is by the name's end unless it is given.

    Raises HistoryError: there is none to write, or the place takes no such file.
    """
    by_name: dict[str, ResultsFormat] = {".csv": "csv", ".json": "google"}
    format = format or by_name.get(path.suffix.lower(), "asv")
    if format == "asv":
        files.check_new_folder(path, "FILE_OR_FOLDER")
    else:
        files.check_new_file(path, "FILE_OR_FOLDER")
    given = list(observations)
    if not given:
        raise HistoryError("no results to write: `ratchet history show` lists the series")
    writers: dict[ResultsFormat, Callable[[Path, Iterable[Observation]], Exported]] = {
        "csv": write_csv,
        "google": write_google,
        "asv": write_asv,
    }
    return writers[format](path, given)
