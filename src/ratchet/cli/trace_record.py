"""`ratchet trace record`: profile a workload, or any training command, without editing it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ratchet.base.errors import TraceError
from ratchet.cli.app import AsJson, Debug, DeviceName, print_error, print_json
from ratchet.cli.options import (
    BatchSize,
    PrecisionName,
    SequenceLength,
    TextFile,
)

COMMAND = "ratchet.command"
MISTAKE = 2


class RecordCommand(TyperCommand):
    """A command that leaves the words after `--` unparsed: they are the user's command."""

    usage = "[OPTIONS] WORKLOAD | -- COMMAND..."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, command = args, None
        if "--" in args:
            cut = args.index("--")
            own, command = args[:cut], args[cut + 1 :]
        ctx.meta[COMMAND] = command
        return super().parse_args(ctx, own)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, self.usage)


def record(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="A built-in workload (llama-60m), hf:NAME_OR_PATH or your own file.py:function."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the traces, one per rank.")
    ] = Path("ratchet-trace"),
    steps: Annotated[int, typer.Option(min=1, help="Steps to record.")] = 3,
    wait: Annotated[int, typer.Option(min=0, help="Steps to skip first.")] = 3,
    warmup: Annotated[
        int, typer.Option(min=0, help="Steps for the profiler to warm up, before recording.")
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
    debug: Debug = False,
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
    else:
        _check_command(command, batch_size, sequence, precision, text)
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


def _check_command(command: list[str], *options: object) -> None:
    if not command:
        raise TraceError("no command after --: give one, such as -- python train.py")
    if any(option is not None for option in options):
        raise TraceError(
            "--batch-size, --sequence, --precision and --text are for a WORKLOAD: leave them out, "
            "and give a command after -- its own options"
        )
