"""`ratchet trace merge`: put the ranks of one run into one file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, print_json


def merge(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Traces of one run, one file per rank.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE.json.gz", help="The merged trace; .gz compresses it."),
    ] = Path("ranks.json.gz"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Merge the ranks of one run into one Chrome trace: one process per rank, on one clock."""
    from ratchet.base import files
    from ratchet.base.errors import TraceError
    from ratchet.report.terminal import working
    from ratchet.report.trace_diff import print_merged
    from ratchet.trace.export.documents import plainly
    from ratchet.trace.export.merge import merge as merge_ranks

    if why := files.why_not_folder(folder):
        raise TraceError(f"{folder} {why}: give a folder that holds a trace for each rank")
    if why := files.why_not_new_file(out):
        raise TraceError(f"--out {out} {why}: name a file in a folder that exists")
    with working(f"merging {folder}"):
        merged = merge_ranks(folder, out)
    if as_json:
        paths = {"path": str(merged.path), "size_bytes": out.stat().st_size}
        print_json(plainly(merged) | paths)
    else:
        print_merged(merged)
