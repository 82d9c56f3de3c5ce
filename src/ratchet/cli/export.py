"""`ratchet export`: proven kernels and programs for use without Ratchet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import (
    AsJson,
    BatchSize,
    DeviceName,
    LedgerUrl,
    PrecisionName,
    SequenceLength,
    TextFile,
    app,
    refuse,
    show,
)
from ratchet.cli.outputs import PATCH, OutEither, OutFile, OutFolder, Output, Values
from ratchet.train.workloads.names import LoadOptions


def _exported(values: Values) -> Output:
    """Return what an export writes: a patch, or a new folder."""
    return OutFile(signs=(PATCH,)) if values["to"] == "patch" else OutFolder()


@app.command()
def export(
    context: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|WORKLOAD",
            help="The recipe.json that `ratchet optimize` wrote; with --to export a workload.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help="kernels: a repository of Hugging Face's kernels. wheel: a Python package. patch: "
            "a diff of your script. export: programs of torch.export.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="PATH",
            parser=OutEither(choose=_exported),
            help="A new folder; with --to patch a file.",
        ),
    ],
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE", help="With --to patch: the training script."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the package. Default: from the workload's name."),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Time the exported kernels again, not only check them."),
    ] = False,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Export a recipe's proven kernels, a patch of a script, or a workload's programs.

    What is written is loaded again and checked first. If a check fails, nothing is written.
    """
    from ratchet.train.publish.export_result import parse_form
    from ratchet.train.turn.settings import workload_options

    form = parse_form(to)
    options: LoadOptions = {}
    if form != "export":
        refuse(context, "batch_size sequence precision text device", f"with --to {form}")
    if form in ("patch", "export"):
        refuse(context, "name prove", f"with --to {form}")
    if form == "export":
        options = workload_options([subject], batch_size, sequence, precision, text, device)

    # torch is imported from here on: mistakes in the call are already answered.
    from ratchet.base.show.terminal import working
    from ratchet.train.publish import run_export
    from ratchet.train.publish.export_result import export_report

    with working(f"exporting {subject}"):
        result = run_export(
            subject,
            form,
            out,
            script=script,
            name=name,
            prove=prove,
            options=options,
            ledger=ledger,
        )
    show(as_json, lambda: result, lambda: export_report(result))
