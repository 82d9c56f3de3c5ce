"""The files of a run of learning: result.json and report.html in its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from ratchet.base.errors import LearnError
from ratchet.base.files import write_whole
from ratchet.learn.result import LearnReport

Render = Callable[[LearnReport], str]
RESULT, PAGE = "result.json", "report.html"


def write_report(report: LearnReport, folder: Path, render: Render) -> dict[str, str]:
    """Write both files; return their paths.

    Raises:
        LearnError: they cannot be written.
    """
    try:
        write_whole(folder / RESULT, (json.dumps(report.to_json(), indent=2) + "\n").encode())
        write_whole(folder / PAGE, render(report).encode())
    except OSError as error:
        raise LearnError(
            f"the report cannot be written to {str(folder)!r} ({error.strerror}): make room there"
        ) from error
    return {"result": str(folder / RESULT), "page": str(folder / PAGE)}


def refresh_page(report: LearnReport, folder: Path, render: Render) -> None:
    """Write the page of a run that goes on; a disk that is full does not end the run."""
    with contextlib.suppress(OSError):
        write_whole(folder / PAGE, render(report).encode())
