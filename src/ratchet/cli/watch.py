"""`ratchet watch`: a gate for pull requests."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.cli.app import AsJson, LedgerUrl, app, option, print_error, show
from ratchet.cli.outputs import COMMENT, JUNIT, OutFile, Page


@app.command()
def watch(
    base: str = option(
        "", "Base branch or commit; the head is compared with where it parted from it.", "REVISION"
    ),
    against: Path | None = option(
        None, "Compare with a history instead: CSV, JSON or an asv folder.", "FILE"
    ),
    suite: Path | None = option(
        None, "What to run. Default: ratchet-watch.toml here, else a smoke workload.", "FILE.toml"
    ),
    pairs: int | None = option(None, "Pairs per benchmark, instead of the suite's.", min=3),
    budget: str = option("", "Start no pair after this: 90s, 10m.", "DURATION"),
    advisory: bool = option(False, "Report, and exit with 0 whatever was found."),
    markdown: Path | None = option(
        None, "Write a comment for a pull request.", "FILE.md", parser=OutFile(signs=(COMMENT,))
    ),
    junit: Path | None = option(
        None, "Write JUnit XML.", "FILE.xml", parser=OutFile(signs=(JUNIT,))
    ),
    out: Page = None,
    record: bool = option(False, "Store the head's results in the ledger."),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a suite of benchmarks at the head and at the base, and say what got slower.

    Exit code 0: nothing is slower than allowed. 1: something is, or a benchmark failed. 2: a side
    ran other code than its commit's, or a mistake in the call.
    """
    from ratchet.base import files
    from ratchet.base.errors import RatchetError, WatchError
    from ratchet.guard.watch.suite import read_suite

    here = Path.cwd()
    if bool(base) == (against is not None):
        raise WatchError("give --base REVISION or --against FILE, one of them")
    asked = read_suite(suite, here)

    from ratchet.base.show.terminal import RunProgress
    from ratchet.guard.watch import junit_xml, markdown_comment, run_gate, watch_report
    from ratchet.guard.watch.suite import Limits
    from ratchet.train.turn.settings import parse_budget_s

    limits = Limits(pairs=pairs, time_s=parse_budget_s(budget) if budget else float("inf"))
    try:
        with RunProgress({one.name: asked.pairs_of(one, pairs) for one in asked.benchmark}) as line:
            report = run_gate(
                here,
                asked,
                limits,
                line.ran,
                base=base,
                against=against,
                advisory=advisory,
                record=record,
                ledger=ledger,
            )
    except RatchetError as error:
        if not advisory:
            raise
        typer.echo(f"ratchet: {error} (advisory: exit code 0)", err=True)
        if as_json:
            print_error(str(error), 0)
        return
    if markdown is not None:
        files.write_whole(markdown, markdown_comment(report).encode())
    if junit is not None:
        files.write_whole(junit, junit_xml(report))
    if out is not None:
        from ratchet.base.show.page import render_page
        from ratchet.guard.watch import watch_page

        files.write_whole(out, render_page(watch_page(report)).encode())
    show(as_json, report.as_json, lambda: watch_report(report))
    raise typer.Exit(int(report.red))
