"""`ratchet site`: everything in a ledger as linked pages."""

from __future__ import annotations

import sys
from pathlib import Path

from ratchet.cli.app import AsJson, LedgerUrl, app, option, print_json, show
from ratchet.cli.outputs import SITE, OutFolder


@app.command()
def site(
    out: Path | None = option(
        None,
        "Write the pages to an empty folder, or to that of an earlier site.",
        "FOLDER",
        parser=OutFolder(names=("index.html",), signs=(SITE,), whole=True),
    ),
    commit_url: str = option(
        "", "Address of a commit on your forge: https://HOST/PROJECT/commit/{commit}.", "TEMPLATE"
    ),
    serve: bool = option(False, "Show the pages on 127.0.0.1 instead, and follow the ledger."),
    port: int = option(8321, "Port of --serve; 0 for any that is free.", min=0, max=65535),
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

    if (out is None) != serve:
        raise RatchetError(
            "give --out FOLDER to write the pages, or --serve to show them: one of the two"
        )
    if out is None:
        _serve(ledger, commit_url, port, as_json)
        return
    with working("reading the ledger"), Ledger.open_to_read(ledger) as opened:
        written = write_site(opened, out, commit_url)
    show(as_json, lambda: written, lambda: site_report(written))


def _serve(ledger: str | None, commit_url: str, port: int, as_json: bool) -> None:
    from ratchet.base.ledger import Ledger
    from ratchet.base.show.terminal import working
    from ratchet.guard.site.serve import FollowedSite, SiteServer

    def told(fault: str) -> None:
        print(f"ratchet: {fault}", file=sys.stderr)

    with working("reading the ledger"):
        pages = FollowedSite(lambda: Ledger.open_to_read(ledger), commit_url, told)
    server = SiteServer(pages, port)
    if as_json:
        print_json({"url": server.url})
    else:
        print(f"{server.url} shows the ledger until you press Ctrl-C", flush=True)
    server.run()
