"""`ratchet trace merge`: the ranks of one run in one file that opens in Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import Debug, Json, print_json


def merge(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Traces of one run, one a rank.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE.json.gz", help="The merged trace, packed where it ends in .gz."
        ),
    ] = Path("ranks.json.gz"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put the traces of a run's ranks into one Chrome trace: a process for each, on one clock."""
    from ratchet.errors import TraceError
    from ratchet.report.console import working
    from ratchet.report.trace_terminal_more import print_merged
    from ratchet.trace.documents import plainly
    from ratchet.trace.merge import merge as merge_ranks
    from ratchet.trace.runs import check

    check(folder)
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder: give one that holds a trace for each rank")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise TraceError(f"--out {out} is not a file in a folder that exists: name one")
    with working(f"merging {folder}"):
        merged = merge_ranks(folder, out)
    plain = plainly(merged) | {"path": str(merged.path), "size_bytes": out.stat().st_size}
    if as_json:
        print_json(plain)
    else:
        print_merged(plain)
