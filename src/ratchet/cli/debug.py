"""`ratchet debug`: which collective ranks disagree on, from flight-recorder dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, app, print_json, print_result


@app.command()
def debug(
    dumps: Annotated[
        list[Path],
        typer.Argument(
            metavar="DUMPS...", help="Flight-recorder dumps, one a rank, or folders of them."
        ),
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say on which collective ranks disagree or wait, with their stacks.

    Exit code 1 if something was found.
    """
    from ratchet.scale.ranks.dumps import read_dumps
    from ratchet.scale.ranks.show import untangled_report
    from ratchet.scale.ranks.untangle import untangle

    found = untangle(*read_dumps(dumps))
    if as_json:
        print_json(found)
    else:
        print_result(untangled_report(found))
    raise typer.Exit(1 if found.found else 0)
