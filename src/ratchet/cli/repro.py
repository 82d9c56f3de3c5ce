"""`ratchet repro`: a finding as a script, its environment and an issue for upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, LedgerUrl, app, print_json


@app.command()
def repro(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The start of a comparison's identity, or of a kernel's hash."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to write to. Default: ratchet-repro/ID."),
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a script that shows a finding, with its environment and an issue in Markdown.

    A finding is a comparison, a divergence of numerics, or a verdict on a kernel.
    """
    from ratchet.guard.repro.write import repro as write

    made = write(identity, out or Path("ratchet-repro") / identity, ledger=ledger)
    if as_json:
        print_json(made.as_json())
        return
    print(made.title)
    for name in made.written:
        print(f"wrote: {made.folder / name}")
    for need in made.needs:
        print(f"needs: {need}")
