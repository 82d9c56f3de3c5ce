"""`ratchet history`, results over commits, and `ratchet site`, a ledger as linked pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli import outputs
from ratchet.cli.app import AsJson, LedgerUrl, app, argument, group, option, print_json, show
from ratchet.cli.outputs import SITE, OutFolder

commands = group(
    "history", "Follow results over commits: change points, incidents, import and export."
)

MOST_LEFT_OUT = 5
Only = Annotated[str, option(..., "Only series whose name matches.", "REGEX")]
Note = Annotated[str, option(..., "Why, in a line.")]
IncidentId = Annotated[str, argument("Its id, or the first digits.", "INCIDENT")]


@commands.command("show")
def show_(
    out: outputs.Page = None,
    only: Only = "",
    at_least: str = option("1%", "Smallest change to show.", "SHARE"),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find the change points of all series, and bring the incidents up to date.

    Exit code 0: no open incident. 1: there are some. 2: a mistake in the call.
    """
    from ratchet.base import files
    from ratchet.base.ledger import Ledger
    from ratchet.base.ledger.books import ObservationBook
    from ratchet.base.show.terminal import working
    from ratchet.base.show.words import parse_share
    from ratchet.guard.history import analyse, check_matched, compiled, gather
    from ratchet.guard.history.incidents import follow, incidents
    from ratchet.guard.history.show import history_document, history_report

    least = parse_share(at_least, "--at-least")
    pattern = compiled(only)
    # What is shown must not decide over the life of an incident: all series are searched.
    with working("searching for changes"), Ledger.open_to_read(ledger) as opened:
        book = ObservationBook(opened)
        every = analyse(gather(book.observations()))
        found = follow(book, incidents(every), [one.series.key for one in every])
    analysed = [one.at_least(least) for one in every if pattern.search(one.series.key)]
    check_matched(only, analysed, [one.series.key for one in every])
    found = [one for one in found if one.shown(least, pattern)]
    if out is not None:
        from ratchet.guard.history.show import render_history_page

        files.write_whole(out, render_history_page(analysed, found).encode())
    show(
        as_json, lambda: history_document(analysed, found), lambda: history_report(analysed, found)
    )
    raise typer.Exit(int(any(one.state == "open" for one in found)))


@commands.command("import")
def import_(
    path: Path = argument(
        "CSV, JSON of Google-benchmark, pytest-benchmark or hyperfine, the data.js of "
        "github-action-benchmark, or an asv results folder.",
        "FILE_OR_FOLDER",
    ),
    revision: str = option("", "Commit, where the file has none.", "COMMIT"),
    time: str = option("", "Time of the commit, where the file has none."),
    machine: str = option("unknown", "Machine, where the file has none.", "NAME"),
    unit: str = option("", "Unit, where the file has none."),
    higher_is_better: bool = option(False, "Where the file does not say."),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add results from a file to the ledger, all or none; what it holds already is skipped."""
    from ratchet.base.ledger import Ledger
    from ratchet.base.ledger.books import ObservationBook
    from ratchet.base.show.terminal import working
    from ratchet.guard.history.csv_file import ImportDefaults, as_utc
    from ratchet.guard.history.formats import read_results

    defaults = ImportDefaults(
        revision=revision,
        committed_at=as_utc(time, "--time") if time else "",
        device=machine,
        unit=unit,
        better="higher" if higher_is_better else "lower",
    )
    left_out: list[str] = []
    with working(f"reading {path}"):
        results = read_results(path, defaults, left_out.append)  # before a ledger is made
        with Ledger.open(ledger) as opened:
            found = ObservationBook(opened).record(results)
            place = opened.place
    there = f"; {found.known} that it held already were skipped" if found.known else ""
    more = f"; and {len(left_out) - MOST_LEFT_OUT} more" if len(left_out) > MOST_LEFT_OUT else ""
    without = f"; {len(left_out)} without a result: " if left_out else ""
    _say(
        {"imported": found.added, "skipped": found.known, "left_out": left_out, "ledger": place},
        f"{found.added} results from {path} in {place}{there}{without}"
        f"{'; '.join(left_out[:MOST_LEFT_OUT])}{more}",
        as_json,
    )


def _exported(values: outputs.Values) -> outputs.Output:
    """Return what an export writes, by its format or the name's end."""
    by_name = {".csv": "csv", ".json": "google"}.get(values["path"].suffix.lower(), "asv")
    form = values["format"] or by_name
    if form == "asv":
        return outputs.OutFolder(names=("benchmarks.json", "*/*.json"), signs=(outputs.ASV,))
    return outputs.OutFile(signs=(outputs.HISTORY if form == "csv" else outputs.GOOGLE,))


@commands.command()
def export(
    path: Path = argument(
        "What to write: .csv, .json, or a folder.",
        "FILE_OR_FOLDER",
        parser=outputs.OutEither(choose=_exported),
    ),
    format: Literal["csv", "asv", "google"] | None = option(
        None, "Default: by the name's end; a folder is asv's."
    ),
    only: Only = "",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write results of the ledger to a file."""
    from ratchet.base.ledger import Ledger
    from ratchet.base.ledger.books import ObservationBook
    from ratchet.guard.history import check_matched, compiled
    from ratchet.guard.history.csv_file import series_of
    from ratchet.guard.history.formats import write_results
    from ratchet.guard.history.show import export_document, left_out_words

    pattern = compiled(only)
    with Ledger.open_to_read(ledger) as opened:
        rows = ObservationBook(opened).observations()
    kept = [one for one in rows if pattern.search(series_of(one))]
    check_matched(only, kept, sorted({series_of(one) for one in rows}))
    found = write_results(path, kept, format)
    words = f"{found.results} results in {path}{left_out_words(found)}"
    _say(export_document(found, str(path)), words, as_json)


def _marking(event: Literal["acknowledged", "resolved"]) -> Callable[..., None]:
    """Return the command that notes what became of an incident."""

    def run(
        incident: IncidentId,
        note: Note = "",
        ledger: LedgerUrl = None,
        as_json: AsJson = False,
    ) -> None:
        from ratchet.base.ledger import Ledger
        from ratchet.base.ledger.books import ObservationBook
        from ratchet.guard.history.incidents import mark

        with Ledger.open_to_read(ledger) as opened:
            marked = mark(ObservationBook(opened), incident, event, note)
        document = {"incident": marked.id, "state": marked.state}
        _say(document, f"{marked.id} is {marked.state}", as_json)

    return run


commands.command("acknowledge", help="Say that somebody looks after an incident.")(
    _marking("acknowledged")
)
commands.command("resolve", help="Close an incident: it was mended, or is accepted.")(
    _marking("resolved")
)


def _say(document: Mapping[str, object], words: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(words)


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
