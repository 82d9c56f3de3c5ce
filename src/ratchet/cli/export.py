"""`ratchet export`: proven kernels and programs for use without Ratchet."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import PATCH, OutEither, OutFile, OutFolder, Output, Values
from ratchet.train.workloads.names import LoadOptions


def _exported(values: Values) -> Output:
    """Return what an export writes: a patch, or a new folder."""
    return OutFile(signs=(PATCH,)) if values["to"] == "patch" else OutFolder()


@app.command()
def export(
    context: typer.Context,
    subject: str = argument(
        "The recipe.json that `ratchet optimize` wrote; with --to export a workload.",
        "RECIPE|WORKLOAD",
    ),
    to: str = option(
        ...,
        "kernels: a repository of Hugging Face's kernels. wheel: a Python package. "
        "patch: a diff of your script. export: programs of torch.export.",
        "FORM",
    ),
    out: Path = option(
        ..., "A new folder; with --to patch a file.", "PATH", parser=OutEither(choose=_exported)
    ),
    script: Path | None = option(None, "With --to patch: the training script.", "FILE"),
    name: str | None = option(None, "Name of the package. Default: from the workload's name."),
    prove: bool = option(False, "Time the exported kernels again, not only check them."),
    step: cli.StepOptions = cli.StepOptions(),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Export a recipe's proven kernels, a patch of a script, or a workload's programs.

    What is written is loaded again and checked first. If a check fails, nothing is written.
    """
    from ratchet.train.publish.export_result import parse_form

    form = parse_form(to)
    options: LoadOptions = {}
    if form != "export":
        cli.refuse(context, cli.STEP, f"with --to {form}")
    if form in ("patch", "export"):
        cli.refuse(context, "name prove", f"with --to {form}")
    if form == "export":
        options = step.of(subject)

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
    cli.show(as_json, lambda: result, lambda: export_report(result))
