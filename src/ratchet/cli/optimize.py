"""`ratchet optimize`: make one workload's training step faster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import Debug, DeviceName, Json, LedgerUrl, app, print_json
from ratchet.cli.options import BatchSize, PrecisionName, SequenceLength, TextFile


def _checked_seed(seed: int) -> int:
    from ratchet.optimize.turn.settings import check_seed

    check_seed(seed)
    return seed


@app.command()
def optimize(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            help="A built-in workload (llama-60m), hf:NAME_OR_PATH, or your own file.py:function."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="Time limit of the whole command: 90s, 30m, 2h.")
    ] = "30m",
    out: Annotated[
        Path, typer.Option(help="Folder for recipe.json, result.json and report.html.")
    ] = Path("ratchet-out"),
    keep_precision: Annotated[
        bool, typer.Option("--keep-precision", help="Forbid changes to the arithmetic.")
    ] = False,
    try_lever: Annotated[
        str | None, typer.Option("--try", metavar="LEVER", help="Try only this lever.")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be tried, and stop.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="With --dry-run: an AMD GPU that is not here, such as gfx942. The step's kernels "
            "run in the emulator."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    launches: Annotated[int, typer.Option(min=1, help="Process launches of the final run.")] = 3,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    seed: Annotated[
        int, typer.Option(callback=_checked_seed, help="Seed of weights and data.")
    ] = 0,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a training step faster: measure it, try changes, prove them, write a recipe."""
    from ratchet.optimize.turn.settings import checked_target, make_settings

    settings = make_settings(
        workload,
        budget=budget,
        out=out,
        keep_precision=keep_precision,
        try_lever=try_lever,
        resume=resume,
        launches=launches,
        batch_size=batch_size,
        sequence=sequence,
        precision=precision,
        text=text,
        seed=seed,
        device=device,
        ledger=ledger,
        gone_s=time.monotonic() - context.obj if isinstance(context.obj, float) else 0.0,
    )

    elsewhere = checked_target(target, dry=dry)

    # torch is imported from here on: mistakes in the call are already answered.
    from ratchet import api
    from ratchet.optimize.turn.dry_run import dry_run
    from ratchet.report.optimize import print_plan, print_result
    from ratchet.report.progress import TurnProgress

    with TurnProgress(settings.budget_s) as progress:
        if dry:
            found = dry_run(settings, progress, target=elsewhere)
        else:
            outcome = api.run(settings, progress)
    if dry:
        (print_json if as_json else print_plan)(found.to_json())
    elif as_json:
        print_json(outcome.result.model_dump(mode="json"))
    else:
        print_result(outcome.result)
