"""`ratchet trace`: record, report, compare and merge profiler traces."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.base.errors import TraceError
from ratchet.cli.app import (
    COMMAND,
    AsJson,
    BatchSize,
    DeviceName,
    PrecisionName,
    SequenceLength,
    TextFile,
    after_dashes,
    group,
    print_error,
    print_json,
    refuse,
    show,
)
from ratchet.cli.outputs import MERGED, PARQUET, OutFile, OutFolder, PageOrBook

if TYPE_CHECKING:
    from ratchet.trace.export import Table


RUN_HELP = (
    "A trace (Kineto, Chrome or rocprofv3 JSON, plain or gzip; rocpd, .pftrace, .xplane.pb), or a "
    "folder of ranks."
)
HERE = "here"
MISTAKE = 2

commands = group("trace", "Record a profiler trace, see where its time goes, compare, merge.")


@commands.command(cls=after_dashes("[OPTIONS] WORKLOAD | -- COMMAND..."))
def record(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="A built-in workload (llama-60m), hf:NAME_OR_PATH or your own file.py:function."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            parser=OutFolder(),
            help="Folder for the traces, one per rank.",
        ),
    ] = Path("ratchet-trace"),
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Steps to record.")] = 3,
    wait: Annotated[int, typer.Option(min=0, max=1_000_000, help="Steps to skip first.")] = 3,
    warmup: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, help="Steps for the profiler to warm up, before recording."
        ),
    ] = 2,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Also record allocations.")
    ] = True,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Profile a workload, or a command: `-- python train.py`, `-- torchrun ...`.

    Your script needs no edits: every Python process that steps a torch optimizer is profiled, with
    shapes, stacks, modules and memory. If the command fails, its exit code is passed on.
    """
    from ratchet.trace.record import CommandFailed, Schedule
    from ratchet.trace.record import record as run_and_record

    command = context.meta[COMMAND]
    schedule = Schedule(wait=wait, warmup=warmup, active=steps, memory=memory)
    if (workload is None) == (command is None):
        raise TraceError(
            "record takes either WORKLOAD or -- COMMAND: "
            + ("none was given" if workload is None else "both were given")
        )
    if command is None:
        from ratchet.train.turn.settings import workload_options
        from ratchet.train.workloads.run_steps import steps_command

        assert workload is not None
        options = workload_options([workload], batch_size, sequence, precision, text, device)
        command = steps_command(workload, 1 + wait + warmup + steps, options)
    elif not command:
        raise TraceError("no command after --: give one, such as -- python train.py")
    else:
        refuse(
            context,
            "batch_size sequence precision text device",
            "for a command, which takes its own options",
        )
    try:
        paths = run_and_record(command, out, schedule, stdout=sys.stderr if as_json else None)
    except CommandFailed as failed:
        if workload is None or failed.code != MISTAKE:  # else its line is on stderr
            typer.echo(f"ratchet: {failed}", err=True)
        if as_json:
            print_error(str(failed), failed.exit_code)
        raise typer.Exit(failed.exit_code) from None
    if as_json:
        print_json(
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
    typer.Option(
        "--parquet",
        metavar="FOLDER",
        parser=OutFolder(names=("*.parquet",), signs=(PARQUET,)),
        help="Write each table as a Parquet file.",
    ),
]
RankNumber = Annotated[
    int | None,
    typer.Option("--rank", min=0, help="Read only this rank of a folder. Default: all ranks."),
]
Top = Annotated[int, typer.Option(min=1, help="Rows per table on the terminal.")]


@commands.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER", help=RUN_HELP)],
    out: PageOrBook = None,
    parquet: Parquet = None,
    rank: RankNumber = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Ceilings: of a device of the catalogue (MI300X), measured on this machine "
            "('here'), or a file of `ratchet device --json` or of TraceLens (gpu_arch_json). "
            "Default: of the device that the trace names.",
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--capture",
            metavar="TRACE",
            help="Trace of the run that captured the CUDA or HIP graphs. Default: the same trace.",
        ),
    ] = None,
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Account for all of a trace's time, and show what could be won."""
    from ratchet.base.show.terminal import working
    from ratchet.trace.answers.ceilings import given_ceilings
    from ratchet.trace.compare import report_here, report_run
    from ratchet.trace.export import document, ranks_document, ranks_tables, report_tables
    from ratchet.trace.ranks import Ranks
    from ratchet.trace.show import render_trace_page, trace_report

    _check_tables(out, parquet)
    with working(f"reading {run}"):
        if device == HERE:
            found = report_here(run, rank, capture)
        else:
            ceilings = None if device is None else given_ceilings(device)
            found = report_run(run, ceilings, rank, capture)
    page = partial(render_trace_page, found)
    if isinstance(found, Ranks):
        _write(out, parquet, page, lambda: ranks_tables(found))
        show(as_json, lambda: ranks_document(found), lambda: trace_report(found, top=top))
    else:
        _write(out, parquet, page, lambda: report_tables([found]))
        show(as_json, lambda: document(found), lambda: trace_report(found, top=top))
    _say_written(as_json, out, parquet)


@commands.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help=RUN_HELP)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The second run, likewise.")],
    out: PageOrBook = None,
    parquet: Parquet = None,
    rank: RankNumber = None,
    top: Top = 10,
    as_json: AsJson = False,
) -> None:
    """Show what got slower, what is new and what is gone; the parts add up to the whole change."""
    from ratchet.base.show.terminal import working
    from ratchet.trace.compare import diff_runs
    from ratchet.trace.export import diff_document, diff_tables
    from ratchet.trace.show.diff import diff_report, render_diff_page

    _check_tables(out, parquet)
    with working(f"reading {before} and {after}"):
        found = diff_runs(before, after, rank)
    _write(out, parquet, lambda: render_diff_page(found), lambda: diff_tables(found))
    show(as_json, lambda: diff_document(found), lambda: diff_report(found, top=top))
    _say_written(as_json, out, parquet)


def _check_tables(out: Path | None, parquet: Path | None) -> None:
    """Refuse tables that cannot be written, before a long trace is read."""
    from ratchet.trace import export

    if parquet is not None:
        export.check_parquet(parquet)
    if out is not None and out.suffix == export.EXCEL:
        export.check_excel()


def _write(
    out: Path | None,
    parquet: Path | None,
    page: Callable[[], str],
    tables: Callable[[], Iterable[Table]],
) -> None:
    from ratchet.base.files import write_whole
    from ratchet.trace import export

    if out is not None and out.suffix == export.EXCEL:
        export.write_excel(tables(), out)
    elif out is not None:
        write_whole(out, page().encode())
    if parquet is not None:
        export.write_parquet(tables(), parquet)


def _say_written(as_json: bool, *paths: Path | None) -> None:
    for path in paths:
        if path is not None and not as_json:
            print(f"written: {path}")


@commands.command()
def merge(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Traces of one run, one file per rank.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE.json.gz",
            parser=OutFile(signs=(MERGED,), apart=True),
            help="The merged trace; .gz compresses it.",
        ),
    ] = Path("ranks.json.gz"),
    notes: Annotated[
        bool, typer.Option("--notes/--no-notes", help="Also write what was found, as slices.")
    ] = True,
    as_json: AsJson = False,
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
    show(as_json, lambda: plainly(merged) | paths, lambda: merged_report(merged))
