"""`ratchet emulate`: a Triton program on an AMD GPU that is not here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, app, print_json, print_result
from ratchet.cli.trace_record import COMMAND, RecordCommand


class EmulateCommand(RecordCommand):
    """`emulate`, whose words after `--` are the program."""

    usage = "[OPTIONS] -- COMMAND..."


@app.command(cls=EmulateCommand)
def emulate(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The GPU's code: gfx90a, gfx942, gfx950, gfx1100 or gfx1201."
        ),
    ] = "gfx942",
    autotune: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Configuration of autotuned kernels: first (the first that compiles) or bound "
            "(the one with the least bound; every configuration runs).",
        ),
    ] = "first",
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write JUnit's XML, a test case for each kernel."),
    ] = None,
    instructions: Annotated[
        int,
        typer.Option(min=1000, metavar="N", help="Most wave instructions of one launch."),
    ] = 2_000_000_000,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a Triton program on an emulated AMD GPU: `-- pytest test_it.py`, `-- python it.py`.

    The program needs no edits. Its `device="cuda"` tensors lie in main memory, its launches run as
    the GPU's machine code, and torch.cuda answers as the GPU would. Nothing is timed. The program
    is your own: it runs unconfined, as when you start it yourself.

    The exit code is the program's, or 1 if it hid a launch that failed.
    """
    from ratchet.amd.emulator.program import check_autotune
    from ratchet.amd.emulator.program import emulate as run

    result = run(
        context.meta[COMMAND] or (),
        target,
        autotune=check_autotune(autotune),
        limit=instructions,
        stdout=sys.stderr if as_json else None,
    )
    if junit is not None:
        from ratchet.base.files import write_whole

        write_whole(junit, result.as_junit())
    if as_json:
        print_json(result.as_json())
    else:
        from ratchet.amd.emulator.program import emulate_report

        print_result(emulate_report(result))
    raise typer.Exit(result.code)
