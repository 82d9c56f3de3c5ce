"""`ratchet port`: what stands between CUDA code and ROCm, and a patch for what can be rewritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import Debug, Json, app, print_json


@app.command()
def port(
    path: Annotated[Path, typer.Argument(help="A repository, a folder or a file.")],
    write: Annotated[
        bool, typer.Option("--write", help="Change the files. Without it, only report.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write even if git has no copy of the files.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAMES",
            help="GPUs to compile for, separated by commas; none compiles nothing. Default: all.",
        ),
    ] = "",
    sarif: Annotated[
        Path | None,
        typer.Option("--sarif", metavar="FILE", help="Write the findings as SARIF too."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write the patch, a page, JSON and the HIP code there."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Port CUDA and Triton code to ROCm: findings, a patch, and a compilation for AMD GPUs.

    Exit code 0: nothing is left to do. 1: findings are left. 2: a mistake in the call.
    """
    from ratchet.base.files import write_whole
    from ratchet.judge.workers.candidate.architectures import TARGETS
    from ratchet.port.run import PortSettings, write_outputs
    from ratchet.port.run import port as run
    from ratchet.report.port import as_sarif, print_port, render_port_page
    from ratchet.report.terminal import working

    names = [name.strip() for name in target.split(",") if name.strip()]
    settings = PortSettings(
        write=write,
        force=force,
        targets=TARGETS if names in ([], ["none"]) else tuple(names),
        compiles=names != ["none"],
    )
    with working(f"reading {path}"):
        result = run(path, settings)
    if out is not None:
        result = write_outputs(result, out, render_port_page(result))
    if sarif is not None:
        write_whole(sarif, json.dumps(as_sarif(result), indent=2).encode())
    if as_json:
        print_json(result.as_json())
    else:
        print_port(result)
    if result.left:
        raise typer.Exit(1)
