"""`ratchet trace`: record, report, compare and merge profiler traces."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ratchet.base.errors import TraceError
from ratchet.cli import app as cli
from ratchet.cli.app import argument, group, option
from ratchet.cli.outputs import MERGED, PARQUET, OutFile, OutFolder, PageOrBook

if TYPE_CHECKING:
    from ratchet.base.show.model import ResultReport
    from ratchet.trace.export import Table

Result = TypeVar("Result")


RUN_HELP = (
    "A trace (Kineto, Chrome or rocprofv3 JSON, plain or gzip; rocpd, .pftrace, .xplane.pb), or a "
    "folder of ranks."
)
HERE = "here"
MISTAKE = 2

commands = group("trace", "Record a profiler trace, see where its time goes, compare, merge.")


@commands.command(cls=cli.after_dashes("[OPTIONS] WORKLOAD | -- COMMAND..."))
def record(
    context: typer.Context,
    workload: str | None = argument(
        "A built-in workload (llama-60m), hf:NAME_OR_PATH or your own file.py:function.",
        default=None,
    ),
    out: Path = option(
        Path("ratchet-trace"), "Folder for the traces, one per rank.", "FOLDER", parser=OutFolder()
    ),
    steps: int = option(3, "Steps to record.", min=1, max=10_000),
    wait: int = option(3, "Steps to skip first.", min=0, max=1_000_000),
    warmup: int = option(
        2, "Steps for the profiler to warm up, before recording.", min=0, max=10_000
    ),
    memory: bool = option(True, "Also record allocations.", flag="--memory/--no-memory"),
    step: cli.StepOptions = cli.StepOptions(),
    as_json: cli.AsJson = False,
) -> None:
    """Profile a workload, or a command: `-- python train.py`, `-- torchrun ...`.

    Your script needs no edits: every Python process that steps a torch optimizer is profiled, with
    shapes, stacks, modules and memory. If the command fails, its exit code is passed on.
    """
    from ratchet.trace.record import CommandFailed, Schedule
    from ratchet.trace.record import record as run_and_record

    command = context.meta[cli.COMMAND]
    schedule = Schedule(wait=wait, warmup=warmup, active=steps, memory=memory)
    if (workload is None) == (command is None):
        raise TraceError(
            "record takes either WORKLOAD or -- COMMAND: "
            + ("none was given" if workload is None else "both were given")
        )
    if command is None:
        from ratchet.train.workloads.run_steps import steps_command

        assert workload is not None
        command = steps_command(workload, 1 + wait + warmup + steps, step.of(workload))
    elif not command:
        raise TraceError("no command after --: give one, such as -- python train.py")
    else:
        cli.refuse(
            context,
            cli.STEP,
            "for a command, which takes its own options",
        )
    try:
        paths = run_and_record(command, out, schedule, stdout=sys.stderr if as_json else None)
    except CommandFailed as failed:
        if workload is None or failed.code != MISTAKE:  # else its line is on stderr
            typer.echo(f"ratchet: {failed}", err=True)
        if as_json:
            cli.print_error(str(failed), failed.exit_code)
        raise typer.Exit(failed.exit_code) from None
    if as_json:
        cli.print_json(
            {
                "command": list(command),
                "steps": steps,
                "traces": [{"path": str(p), "size_bytes": p.stat().st_size} for p in paths],
            }
        )
        return
    for path in paths:
        print(f"recorded: {path}")
    print(f"next: ratchet trace report {shlex.quote(str(out))} --out trace.html")


Parquet = Annotated[
    Path | None,
    option(
        ...,
        "Write each table as a Parquet file.",
        "FOLDER",
        parser=OutFolder(names=("*.parquet",), signs=(PARQUET,)),
    ),
]
RankNumber = Annotated[
    int | None, option(..., "Read only this rank of a folder. Default: all ranks.", min=0)
]
Top = Annotated[int, option(..., "Rows per table on the terminal.", min=1)]


@commands.command()
def report(
    run: Path = argument(RUN_HELP, "FILE_OR_FOLDER"),
    out: PageOrBook = None,
    parquet: Parquet = None,
    rank: RankNumber = None,
    device: str | None = option(
        None,
        "Ceilings: of a device of the catalogue (MI300X), measured on this machine "
        "('here'), or a file of `ratchet device --json` or of TraceLens (gpu_arch_json). "
        "Default: of the device that the trace names.",
        "NAME",
    ),
    capture: Path | None = option(
        None,
        "Trace of the run that captured the CUDA or HIP graphs. Default: the same trace.",
        "TRACE",
    ),
    top: Top = 10,
    as_json: cli.AsJson = False,
) -> None:
    """Account for all of a trace's time, and show what could be won."""
    from ratchet.base.show.terminal import working
    from ratchet.trace.answers.ceilings import given_ceilings
    from ratchet.trace.compare import report_here, report_run
    from ratchet.trace.export import (
        check_tables,
        document,
        ranks_document,
        ranks_tables,
        report_tables,
    )
    from ratchet.trace.ranks import Ranks
    from ratchet.trace.show import trace_report

    check_tables(out, parquet)
    with working(f"reading {run}"):
        if device == HERE:
            found = report_here(run, rank, capture)
        else:
            ceilings = None if device is None else given_ceilings(device)
            found = report_run(run, ceilings, rank, capture)
    more: dict[str, Any] = {"out": out, "parquet": parquet, "top": top, "as_json": as_json}
    if isinstance(found, Ranks):
        _show(found, ranks_tables, ranks_document, trace_report, **more)
    else:
        _show(found, lambda one: report_tables([one]), document, trace_report, **more)


@commands.command()
def diff(
    before: Path = argument(RUN_HELP, "BEFORE"),
    after: Path = argument("The second run, likewise.", "AFTER"),
    out: PageOrBook = None,
    parquet: Parquet = None,
    rank: RankNumber = None,
    top: Top = 10,
    as_json: cli.AsJson = False,
) -> None:
    """Show what got slower, what is new and what is gone; the parts add up to the whole change."""
    from ratchet.base.show.terminal import working
    from ratchet.trace.compare import diff_runs
    from ratchet.trace.export import check_tables, diff_document, diff_tables
    from ratchet.trace.show.diff import diff_report

    check_tables(out, parquet)
    with working(f"reading {before} and {after}"):
        found = diff_runs(before, after, rank)
    more: dict[str, Any] = {"out": out, "parquet": parquet, "top": top, "as_json": as_json}
    _show(found, diff_tables, diff_document, diff_report, **more)


def _show(
    found: Result,
    tables: Callable[[Result], Iterable[Table]],
    document: Callable[[Result], object],
    report: Callable[..., ResultReport],
    *,
    out: Path | None,
    parquet: Path | None,
    top: int,
    as_json: bool,
) -> None:
    """Write the page or the tables that were asked for, and print the result."""
    from ratchet.base.files import write_whole
    from ratchet.base.show.page import render_page
    from ratchet.trace import export

    if out is not None and out.suffix == export.EXCEL:
        export.write_excel(tables(found), out)
    elif out is not None:
        write_whole(out, render_page(report(found)).encode())
    if parquet is not None:
        export.write_parquet(tables(found), parquet)
    cli.show(as_json, lambda: document(found), lambda: report(found, top=top))
    if not as_json:
        for path in filter(None, (out, parquet)):
            print(f"written: {path}")


@commands.command()
def merge(
    folder: Path = argument("Traces of one run, one file per rank.", "FOLDER"),
    out: Path = option(
        Path("ranks.json.gz"),
        "The merged trace; .gz compresses it.",
        "FILE.json.gz",
        parser=OutFile(signs=(MERGED,), apart=True),
    ),
    notes: bool = option(True, "Also write what was found, as slices.", flag="--notes/--no-notes"),
    as_json: cli.AsJson = False,
) -> None:
    """Merge the ranks of one run into one Chrome trace: one process per rank, on one clock."""
    from ratchet.base import files
    from ratchet.base.show.terminal import working
    from ratchet.trace.export import plainly
    from ratchet.trace.merge import merge as merge_ranks
    from ratchet.trace.show.diff import merged_report

    if why := files.why_not_folder(folder):
        raise TraceError(f"{folder} {why}: give a folder that holds a trace for each rank")
    with working(f"merging {folder}"):
        merged = merge_ranks(folder, out, notes=notes)
    paths = {"path": str(merged.path), "size_bytes": out.stat().st_size}
    cli.show(as_json, lambda: plainly(merged) | paths, lambda: merged_report(merged))
