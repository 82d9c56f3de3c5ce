"""An asv results folder: `benchmarks.json`, and for each machine a file per commit.

The layout is asv's "Benchmark suite layout and file formats", version 2 of its results files.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ratchet.errors import HistoryError
from ratchet.git import utc_of
from ratchet.ledger.observations import Observation

_UNITS = {"seconds": "s", "bytes": "B"}


class AsvResults(msgspec.Struct, kw_only=True):
    """One file of results; asv writes NaN and lists of parameters as they are."""

    commit_hash: str
    date: float
    result_columns: list[str]
    results: dict[str, list[Any]]
    env_name: str = ""
    python: str = ""
    requirements: dict[str, str | None] = {}
    params: dict[str, Any] = {}
    version: int = 2


def read_asv(folder: Path) -> Iterator[Observation]:
    """Yield the figures of an asv results folder; failed benchmarks are left out.

    Raises:
        HistoryError: the folder holds no results, or a file is not as asv writes it.
    """
    units = _units(folder / "benchmarks.json")
    files = sorted(
        path
        for path in folder.glob("*/*.json")
        if path.name not in ("machine.json", "benchmarks.json")
    )
    if not files:
        raise HistoryError(
            f"{folder} holds no asv results: give the folder that has benchmarks.json and one "
            "folder for each machine"
        )
    for path in files:
        yield from _of_file(path, units)


def write_asv(folder: Path, observations: Iterable[Observation]) -> int:
    """Write figures as an asv results folder, for `asv publish`; return how many.

    A benchmark's name is made a Python name, its metric the last part.
    """
    by_file: dict[tuple[str, str, str], list[Observation]] = defaultdict(list)
    units: dict[str, dict[str, Any]] = {}
    count = 0
    for one in observations:
        if not one.revision:
            continue
        by_file[one.device, one.revision, one.software].append(one)
        name = _asv_name(one)
        unit = {"s": "seconds", "B": "bytes"}.get(one.unit, one.unit or "unit")
        units[name] = {
            "code": "",
            "name": name,
            "param_names": [],
            "params": [],
            "type": "time" if one.unit == "s" else "track",
            "unit": unit,
            "version": "1",
        }
        count += 1
    if not by_file:
        raise HistoryError("no figure has a commit, and asv's files need one: nothing to write")
    revisions = {revision for _, revision, _ in by_file}
    try:
        for (device, revision, software), rows in by_file.items():
            machine = folder / _safe(device)
            machine.mkdir(parents=True, exist_ok=True)
            _write(machine / "machine.json", {"machine": _safe(device), "version": 1})
            environment = _safe(software) or "existing"
            document = {
                "commit_hash": revision,
                "env_name": environment,
                "date": int(_milliseconds(rows[-1].committed_at)),
                "params": {"machine": _safe(device)},
                "python": "",
                "requirements": {},
                "env_vars": {},
                "result_columns": ["result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"],
                "results": {
                    _asv_name(one): [[one.value], [], "1", [one.low], [one.high]] for one in rows
                },
                "durations": {},
                "version": 2,
            }
            # asv names files by 8 digits; names that would be one file keep all of theirs.
            alike = sum(other[:8] == revision[:8] for other in revisions)
            name = revision[:8] if alike == 1 else _safe(revision)
            _write(machine / f"{name}-{environment}.json", document)
        _write(folder / "benchmarks.json", {**units, "version": 2})
    except OSError as error:
        raise HistoryError(f"{folder} cannot be written: {error.strerror}") from error
    return count


def _of_file(path: Path, units: dict[str, str]) -> Iterator[Observation]:
    found = _decoded(path, AsvResults)
    at = {name: place for place, name in enumerate(found.result_columns)}
    if "result" not in at:
        raise HistoryError(f"{path} has no column 'result': export it with asv 0.5 or later")
    machine = str(found.params.get("machine") or path.parent.name)[:64]
    environment = (found.env_name or path.stem.partition("-")[2])[:64]
    for name, row in found.results.items():
        values = _listed(_cell(row, at, "result"))
        params = _cell(row, at, "params") or []
        combinations = [", ".join(one) for one in itertools.product(*params)] if params else [""]
        lows, highs = (_listed(_cell(row, at, f"stats_ci_99_{end}")) for end in "ab")
        for place, value in enumerate(values):
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            which = combinations[place] if place < len(combinations) else str(place)
            yield Observation(
                benchmark=f"{name}({which})" if which else name,
                metric="value",
                unit=_UNITS.get(units.get(name, ""), units.get(name, "")),
                better="lower",
                revision=found.commit_hash,
                committed_at=utc_of(found.date / 1000),
                value=float(value),
                low=_finite(lows, place),
                high=_finite(highs, place),
                device=machine,
                software=environment,
                source=str(path.parent.parent),
            )


def _units(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found = _decoded(path, dict[str, Any])
    return {name: str(one.get("unit", "")) for name, one in found.items() if isinstance(one, dict)}


def _decoded(path: Path, kind: type[Any]) -> Any:
    # asv writes NaN, which Python's reader alone takes.
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise HistoryError(f"{path} is not a file of asv results: {error}") from error


def _cell(row: list[Any], at: dict[str, int], name: str) -> Any:
    place = at.get(name, len(row))
    return row[place] if place < len(row) else None


def _listed(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [cell]


def _finite(values: list[Any], place: int) -> float | None:
    found = values[place] if place < len(values) else None
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _milliseconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() * 1000 if time else 0.0


def _asv_name(one: Observation) -> str:
    words = re.sub(r"\W+", "_", one.benchmark).strip("_")
    kind, metric = "time" if one.unit == "s" else "track", re.sub(r"\W+", "_", one.metric)
    return f"{words}.{kind}_{metric}"


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))
