"""Results as CSV, one a line or a column for each metric, and what an export leaves out."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from ratchet.base import files
from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Better, Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The number of things that an export holds."""

    results: int
    series: int
    left_out_results: int
    left_out_series: int  # Series that no result of is written
    why: str  # Why something was left out; empty if nothing was


def series_of(one: Observation) -> str:
    """Return the name of a figure's series."""
    return f"{one.benchmark} | {one.metric} | {one.device}"


def exported(given: Sequence[Observation], kept: Sequence[Observation], why: str) -> Exported:
    """Count what an export holds of what it was given; `why` is the format's limit."""
    every, held = ({series_of(one) for one in rows} for rows in (given, kept))
    return Exported(
        results=len(kept),
        series=len(held),
        left_out_results=len(given) - len(kept),
        left_out_series=len(every - held),
        why=why if len(given) > len(kept) else "",
    )


def is_rate(unit: str) -> bool:
    """Return whether more of a unit is better by its name: `iter/sec`, `GB/s`, `qps`."""
    return re.search(r"/s(ec|econd)?$|\b(qps|fps|iops)$", unit, re.IGNORECASE) is not None


def imported(path: Path, where: str, value: float, device: str, **known: Any) -> Observation:
    """Return a figure of a file, a time where it does not say more; `where` names it in errors.

    Raises HistoryError: the value lies outside its interval.
    """
    low, high = known.get("low"), known.get("high")
    # A program may have printed fewer digits of an end than of the value.
    spare = 1e-9 * abs(value)
    below = low is not None and value < low - spare
    if below or (high is not None and value > high + spare):
        raise HistoryError(
            f"{where}: the value {value!r} lies outside its interval, low {low!r} to high "
            f"{high!r}: correct the line"
        )
    software = known.pop("software", "")[:64]
    given = {"metric": "time", "unit": "s", "better": "lower", **known}
    return Observation(
        value=value, device=device[:64], software=software, source=str(path), **given
    )


COLUMNS = (
    *("benchmark", "metric", "unit", "better", "revision", "committed_at"),
    *("value", "low", "high", "device", "environment"),
)
_OTHERS = (";", "\t", "|")  # Separators of other files than these
_ALIASES = {
    **dict.fromkeys(("commit", "sha"), "revision"),
    **dict.fromkeys(("time", "date", "timestamp"), "committed_at"),
    **dict.fromkeys(("machine", "host"), "device"),
    **dict.fromkeys(("name", "test"), "benchmark"),
    "software": "environment",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportDefaults:
    """Values that a file may leave out."""

    revision: str = ""
    committed_at: str = ""
    device: str = "unknown"
    unit: str = ""
    better: Better = "lower"


def read_csv(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    """Yield the figures of a CSV file.

    With a column `value` each line is one figure. Without it, each column that is not one of
    COLUMNS (or a usual name for it) is a metric of the benchmark, which the file's name names; an
    empty cell is then no figure. Raises HistoryError: the file cannot be read, or has no header; a
    line lacks a value, has more or fewer fields than the header, or a value that is no number or
    lies outside its interval.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            header = next((one for one in lines if one), None)
            names = _columns(path, header, lines.line_num)
            for fields in lines:
                if fields:
                    yield from _figures(path, lines.line_num, names, fields, defaults)
    except UnicodeDecodeError as error:
        raise HistoryError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise HistoryError(f"{path} cannot be read as CSV: {error}") from error


def write_csv(path: Path, observations: Iterable[Observation]) -> Exported:
    """Write figures as CSV, which `read_csv` reads back."""
    given = list(observations)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in given:
        ends = ["" if end is None else repr(end) for end in (one.low, one.high)]
        named = (one.benchmark, one.metric, one.unit, one.better)
        at = (one.revision, one.committed_at, repr(one.value))
        writer.writerow([*named, *at, *ends, one.device, one.software])
    files.write_whole(path, text.getvalue().encode())
    return exported(given, given, "")


def as_utc(text: str, where: str) -> str:
    """Return a time (ISO 8601, or Unix seconds or milliseconds) as ISO 8601 in UTC."""
    try:
        try:
            seconds = float(text)
            found = datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
        except ValueError:
            found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return found.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError) as error:
        raise HistoryError(
            f"{where}: {text!r} is no time; write ISO 8601 (2026-05-17T09:30:00Z) or Unix seconds"
        ) from error


def _columns(path: Path, header: Sequence[str] | None, line: int) -> list[str]:
    """Return the name of each column; one that is not in COLUMNS is a metric's.

    Raises HistoryError: no header, another separator, a column without a name or with another's.
    """
    if header is None:
        raise HistoryError(f"{path} is empty: its first line must name the columns")
    where = f"{path}:{line}"
    if len(header) == 1 and (other := next((one for one in _OTHERS if one in header[0]), "")):
        raise HistoryError(f"{where}: the columns are separated by {other!r}: write commas")
    plain = [name.strip() for name in header]
    names = [_ALIASES.get(one.lower(), one.lower()) for one in plain]
    names = [one if one in COLUMNS else given for one, given in zip(names, plain, strict=True)]
    for at, name in enumerate(names):
        if not name:
            raise HistoryError(f"{where}: column {at + 1} has no name: name it, or remove it")
        if name in names[:at]:
            raise HistoryError(
                f"{where}: the columns {plain[names.index(name)]!r} and {plain[at]!r} are both "
                f"{name!r}: keep one of them"
            )
    if "value" not in names and set(names) <= set(COLUMNS):
        raise HistoryError(
            f"{where}: no column 'value' and none for a metric: the columns are {', '.join(plain)}"
        )
    return names


def _figures(
    path: Path, line: int, names: Sequence[str], fields: Sequence[str], defaults: ImportDefaults
) -> Iterator[Observation]:
    where = f"{path}:{line}"
    if len(fields) != len(names):
        raise HistoryError(
            f"{where}: the line has {len(fields)} of {len(names)} fields: give each column of the "
            "header one"
        )
    known = dict(zip(names, (one.strip() for one in fields), strict=True))
    if "value" in known:
        figures = {known.get("metric") or "value": known["value"]}
    else:
        figures = {name: text for name, text in known.items() if text and name not in COLUMNS}
    if not any(figures.values()):
        raise HistoryError(f"{where}: the line has no value: give it one, or leave it out")
    better = known.get("better") or defaults.better
    if better not in get_args(Better):
        raise HistoryError(f"{where}: better is {better!r}; write lower or higher")
    time = known.get("committed_at", "")
    for metric, text in figures.items():
        value = _number(text, where)
        low, high = (_end(known.get(name, ""), where) for name in ("low", "high"))
        yield imported(
            path,
            where,
            value,
            known.get("device") or defaults.device,
            benchmark=known.get("benchmark") or path.stem,
            metric=metric,
            unit=known.get("unit") or defaults.unit,
            better=better,
            revision=known.get("revision") or defaults.revision,
            committed_at=as_utc(time, where) if time else defaults.committed_at,
            low=low,
            high=high,
            software=known.get("environment", ""),
        )


def _end(text: str, where: str) -> float | None:
    found = _number(text, where) if text else math.nan
    return found if math.isfinite(found) else None


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise HistoryError(f"{where}: {text!r} is no number") from error
