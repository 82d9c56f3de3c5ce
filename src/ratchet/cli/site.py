"""`ratchet site`: everything in a ledger as linked pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, LedgerUrl, app, show
from ratchet.cli.outputs import SITE, OutFolder


@app.command()
def site(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=OutFolder(names=("index.html",), signs=(SITE,), whole=True),
            help="Write the pages to an empty folder, or to that of an earlier site.",
        ),
    ] = None,
    commit_url: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help="Address of a commit on your forge: https://HOST/PROJECT/commit/{commit}.",
        ),
    ] = "",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a ledger as a site: what was measured where, what got slower, what was proven.

    Exit code 0, also if an incident is open. 2: a mistake in the call.
    """
    from ratchet.base.errors import RatchetError
    from ratchet.base.ledger import Ledger
    from ratchet.base.show.terminal import working
    from ratchet.guard.site import site_report, write_site

    if out is None:
        raise RatchetError("nothing to do: give --out FOLDER to write the pages there")
    with working("reading the ledger"), Ledger.open_to_read(ledger) as opened:
        written = write_site(opened, out, commit_url)
    show(as_json, lambda: written, lambda: site_report(written))
