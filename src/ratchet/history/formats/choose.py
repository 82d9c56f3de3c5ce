"""The format of a file or folder, by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from ratchet import files
from ratchet.errors import HistoryError
from ratchet.history.formats.asv_folder import read_asv, write_asv
from ratchet.history.formats.csv_file import ImportDefaults, read_csv, write_csv
from ratchet.history.formats.google_benchmark import read_google, write_google
from ratchet.ledger.observations import Observation

ResultsFormat = Literal["csv", "asv", "google"]


def read_results(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    """Yield the figures of a file: a folder is asv's, .json Google-benchmark's, all else CSV."""
    if path.is_dir():
        return read_asv(path)
    if why := files.why_not_file(path):
        raise HistoryError(f"{path} {why}: give a CSV or JSON file, or an asv results folder")
    return read_google(path, defaults) if path.suffix == ".json" else read_csv(path, defaults)


def write_results(
    path: Path, observations: Iterable[Observation], format: ResultsFormat | None = None
) -> int:
    """Write figures; the format is by the name's end unless it is given. Return how many."""
    by_name: dict[str, ResultsFormat] = {".csv": "csv", ".json": "google"}
    format = format or by_name.get(path.suffix, "asv")
    if format != "asv" and (why := files.why_not_new_file(path)):
        raise HistoryError(f"{path} {why}: name a file in a folder that can be written")
    writers: dict[ResultsFormat, Callable[[Path, Iterable[Observation]], int]] = {
        "csv": write_csv,
        "google": write_google,
        "asv": write_asv,
    }
    return writers[format](path, observations)
