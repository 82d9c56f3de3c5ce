"""`ratchet trace replay`: run a trace's ops again on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, DeviceName, print_json


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Kineto trace, recorded with shapes.")
    ],
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="NAME",
            help="Op to replay (aten::mm); repeat for several. Default: the costliest.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Number of distinct calls to run, costliest first.")
    ] = 20,
    device: DeviceName = "auto",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Rebuild a trace's calls from shapes, dtypes and strides, and time them here.

    Calls run through torch.ops in a separate process, with random values.
    """
    from ratchet.base.errors import TraceError
    from ratchet.report.terminal import working
    from ratchet.report.trace_diff import print_replay
    from ratchet.trace.compare.runs import check
    from ratchet.trace.export.documents import plainly
    from ratchet.trace.replay.replay import replay as replay_calls

    check(file)
    if file.is_dir():
        raise TraceError(f"{file} is a folder: give one rank's trace")
    with working(f"replaying {file}"):
        found = replay_calls(file, tuple(op or ()), top, device)
    if as_json:
        print_json(plainly(found))
    else:
        print_replay(found)
