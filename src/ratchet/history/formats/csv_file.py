"""CSV: one figure a line, or one column for each metric."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from ratchet.errors import HistoryError
from ratchet.ledger.observations import Better, Observation

COLUMNS = (
    *("benchmark", "metric", "unit", "better", "revision", "committed_at"),
    *("value", "low", "high", "device", "environment"),
)
_ALIASES = {
    "commit": "revision",
    "sha": "revision",
    "time": "committed_at",
    "date": "committed_at",
    "timestamp": "committed_at",
    "machine": "device",
    "host": "device",
    "software": "environment",
    "name": "benchmark",
    "test": "benchmark",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportDefaults:
    """What a file may leave unsaid."""

    revision: str = ""
    committed_at: str = ""
    device: str = "unknown"
    unit: str = ""
    better: Better = "lower"


def read_csv(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    """Yield the figures of a CSV file.

    With a column `value` each line is one figure. Without it, each column that is not one of
    COLUMNS (or a usual name for it) is a metric of the benchmark, which the file's name names.
    An empty value is left out.

    Raises:
        HistoryError: the file cannot be read, has no header or figures, or a value is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            if not lines.fieldnames:
                raise HistoryError(f"{path} is empty: its first line must name the columns")
            names = {
                name: _ALIASES.get(name.strip().lower(), name.strip().lower())
                for name in lines.fieldnames
            }
            metrics = [name for name, known in names.items() if known not in COLUMNS]
            wide = "value" not in names.values()
            if wide and not metrics:
                raise HistoryError(
                    f"{path} has no column 'value' and none for a metric: its columns are "
                    f"{', '.join(lines.fieldnames)}"
                )
            for number, line in enumerate(lines, start=2):
                known = {names[name]: text or "" for name, text in line.items() if name in names}
                where = f"{path}:{number}"
                if wide:
                    found = {name: line[name] or "" for name in metrics}
                else:
                    found = {known.get("metric") or "value": known["value"]}
                for metric, text in found.items():
                    if text.strip():
                        yield _observation(where, path.stem, metric.strip(), text, known, defaults)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise HistoryError(f"{path} cannot be read as CSV: {error}") from error


def write_csv(path: Path, observations: Iterable[Observation]) -> int:
    """Write figures as CSV, which `read_csv` reads back; return how many."""
    count = 0
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for one in observations:
                ends = ["" if end is None else repr(end) for end in (one.low, one.high)]
                named = (one.benchmark, one.metric, one.unit, one.better)
                at = (one.revision, one.committed_at, repr(one.value))
                writer.writerow([*named, *at, *ends, one.device, one.software])
                count += 1
    except OSError as error:
        raise HistoryError(f"{path} cannot be written: {error.strerror}") from error
    return count


def as_utc(text: str, where: str) -> str:
    """Return a time (ISO 8601, or Unix seconds or milliseconds) as ISO 8601 in UTC."""
    try:
        try:
            seconds = float(text)
            found = datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
        except ValueError:
            found = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise HistoryError(
            f"{where}: {text!r} is no time; write ISO 8601 (2026-05-17T09:30:00Z) or Unix seconds"
        ) from error
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.astimezone(UTC).isoformat(timespec="seconds")


def _observation(
    where: str, stem: str, metric: str, text: str, known: dict[str, str], defaults: ImportDefaults
) -> Observation:
    better = known.get("better") or defaults.better
    if better not in get_args(Better):
        raise HistoryError(f"{where}: better is {better!r}; write lower or higher")
    time = known.get("committed_at", "").strip()
    return Observation(
        benchmark=known.get("benchmark") or stem,
        metric=metric,
        unit=known.get("unit") or defaults.unit,
        better=better,  # type: ignore[arg-type]
        revision=known.get("revision") or defaults.revision,
        committed_at=as_utc(time, where) if time else defaults.committed_at,
        value=_number(text, where),
        low=_end(known.get("low", ""), where),
        high=_end(known.get("high", ""), where),
        device=(known.get("device") or defaults.device)[:64],
        software=known.get("environment", "")[:64],
        source=where.rpartition(":")[0],
    )


def _end(text: str, where: str) -> float | None:
    found = _number(text, where) if text.strip() else math.nan
    return found if math.isfinite(found) else None


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise HistoryError(f"{where}: {text!r} is no number") from error
