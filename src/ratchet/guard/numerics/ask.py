"""`compare --numerics` as one call: two sides in, a report and a script out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.base import scratch
from ratchet.base.errors import GuardError
from ratchet.base.files import why_not_new_folder
from ratchet.devices.probe import probe
from ratchet.guard.compare.sides import WorkloadSide
from ratchet.guard.numerics.divergence import NumericsReport
from ratchet.guard.numerics.find import Finder, OpenRecorder, recorder_process
from ratchet.guard.numerics.script import write_script
from ratchet.ledger import Ledger

COMMAND = "numerics"


def check_out(out: Path) -> None:
    """Raise GuardError if the folder for the script cannot be made."""
    if why := why_not_new_folder(out):
        raise GuardError(f"--out {out} {why}: name a folder")


def compare_numerics(
    a: WorkloadSide,
    b: WorkloadSide,
    out: Path,
    *,
    asked: Mapping[str, Any],
    ledger: str | os.PathLike[str] | None = None,
    open_recorder: OpenRecorder = recorder_process,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NumericsReport:
    """Find the first divergence; write a script that shows it to `out`, and keep the report.

    Raises:
        GuardError: the sides are no two versions of one model.
    """
    check_out(out)
    with Ledger.open(ledger) as book:
        here = book.here(probe("cpu"))
        turn = book.start_turn(f"{a.title} : {b.title}", asked, fingerprint=here, command=COMMAND)
        with book.failing(turn), scratch.folder("numerics") as place:
            finder = Finder(a, b, place, open_recorder=open_recorder, on_progress=on_progress)
            report = replace(finder.find(), turn=turn)
            if report.exit_code:
                side = b if report.divergence is None or report.divergence.side == "B" else a
                on_progress("writing a script that reproduces it")
                report = write_script(finder, report, side, out)
            book.finish_turn(turn, report.as_json())
    return report
