"""`ratchet optimize`: one turn of the ratchet on a workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import Debug, DeviceName, Json, LedgerUrl, app, print_json
from ratchet.cli.options import (
    BatchSize,
    PrecisionName,
    SequenceLength,
    TextFile,
    workload_options,
)


@app.command()
def optimize(
    workload: Annotated[
        str,
        typer.Argument(
            help="A built-in (llama-60m), hf:NAME_OR_PATH, or your own file.py:function."
        ),
    ],
    budget: Annotated[str, typer.Option(help="How long the turn may take: 90s, 30m, 2h.")] = "30m",
    out: Annotated[
        Path, typer.Option(help="Folder for recipe.json, result.json and report.html.")
    ] = Path("ratchet-out"),
    keep_precision: Annotated[
        bool, typer.Option("--keep-precision", help="Forbid changes to the arithmetic.")
    ] = False,
    try_lever: Annotated[
        str | None, typer.Option("--try", metavar="LEVER", help="Try this one lever only.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried, and stop.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the turn that was interrupted.")
    ] = False,
    launches: Annotated[int, typer.Option(min=1, help="Process launches of the final run.")] = 3,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a training step, try changes, prove them, and write the recipe."""
    from ratchet.optimize.settings import Settings, check_settings, parse_duration_s

    settings = Settings(
        workload=workload,
        budget_s=parse_duration_s(budget),
        keep_precision=keep_precision,
        try_lever=try_lever,
        resume=resume,
        out=out,
        ledger=ledger,
        seed=seed,
        launches=launches,
    )
    check_settings(settings)
    options = workload_options(
        [workload], batch_size, sequence, precision, Path(text) if text else None, device
    )
    settings = replace(settings, options={**options, "seed": seed})

    # From here on torch is imported: what text can show was said.
    from ratchet.optimize.compose import write
    from ratchet.optimize.loop import optimize as run_turn
    from ratchet.optimize.loop import plan
    from ratchet.report.page import render_page
    from ratchet.report.progress import Progress
    from ratchet.report.terminal import print_plan, print_result

    with Progress(settings.budget_s) as progress:
        if dry_run:
            found = plan(settings, progress)
        else:
            outcome = run_turn(settings, progress)
            write(outcome.result, outcome.recipe, render_page)
    if dry_run:
        (print_json if as_json else print_plan)(found.to_json())
    else:
        (print_json if as_json else print_result)(outcome.result.model_dump(mode="json"))
