"""The format of a file or folder, by its name and content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from ratchet.base import files
from ratchet.base.errors import HistoryError
from ratchet.base.ledger.books import Observation
from ratchet.guard.history.formats.asv_folder import read_asv, write_asv
from ratchet.guard.history.formats.csv_file import ImportDefaults, read_csv, write_csv
from ratchet.guard.history.formats.figures import Exported
from ratchet.guard.history.formats.google_benchmark import read_google, write_google

ResultsFormat = Literal["csv", "asv", "google"]


def read_results(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    """Yield the figures of a file: a folder is asv's, .json Google-benchmark's, all else CSV.

    Raises:
        HistoryError: the file is in none of these formats, or holds no figure.
    """
    found = -1
    for found, one in enumerate(_figures(path, defaults)):  # noqa: B007 - counted
        yield one
    if found < 0:
        raise HistoryError(f"{path} holds no figure: nothing to read")


def _figures(path: Path, defaults: ImportDefaults) -> Iterator[Observation]:
    if path.is_dir():
        return read_asv(path)
    if why := files.why_not_file(path):
        raise HistoryError(f"{path} {why}: give a CSV or JSON file, or an asv results folder")
    is_json = path.suffix.lower() == ".json"
    return read_google(path, defaults) if is_json else read_csv(path, defaults)


def write_results(
    path: Path, observations: Iterable[Observation], format: ResultsFormat | None = None
) -> Exported:
    """Write figures; the format is by the name's end unless it is given.

    Raises:
        HistoryError: there is none to write, or the place takes no such file.
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
