"""`ratchet optimize`: make one workload's training step faster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import (
    AsJson,
    BatchSize,
    DeviceName,
    LedgerUrl,
    ParallelWords,
    PrecisionName,
    SequenceLength,
    TextFile,
    app,
    seed_option,
    show,
)
from ratchet.cli.outputs import PAGE, RECIPE, OutFolder


@app.command()
def optimize(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            help="A built-in workload (llama-60m), hf:NAME_OR_PATH, or your own file.py:function. "
            "The function returns your script's (model, optimizer, step, batch), a "
            "transformers.Trainer or a ratchet.Workload."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="Time limit of the whole command: 90s, 30m, 2h.")
    ] = "30m",
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            parser=OutFolder(
                names=("recipe.json", "result.json", "report.html"), signs=(PAGE, RECIPE)
            ),
            help="Folder for recipe.json, result.json and report.html.",
        ),
    ] = Path("ratchet-out"),
    keep_precision: Annotated[
        bool, typer.Option("--keep-precision", help="Forbid changes to the arithmetic.")
    ] = False,
    try_lever: Annotated[
        str | None,
        typer.Option("--try", metavar="LEVER", help="Try only this lever; --dry-run lists them."),
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
    launches: Annotated[
        int, typer.Option(min=1, max=1000, help="Process launches of the final run.")
    ] = 3,
    until_proven: Annotated[
        bool, typer.Option("--until-proven", help="End once a recipe is proven faster.")
    ] = False,
    parallel: ParallelWords = None,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    seed: Annotated[int, seed_option("Seed of weights and data.")] = 0,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a training step faster: measure it, try changes, prove them, write a recipe.

    With --parallel, changes in how ranks communicate are tried too, and the slowest rank decides.
    """
    from ratchet.train.turn.settings import checked_target, make_settings

    settings = make_settings(
        workload,
        budget=budget,
        out=out,
        keep_precision=keep_precision,
        try_lever=try_lever,
        resume=resume,
        launches=launches,
        until_proven=until_proven,
        parallel=parallel,
        batch_size=batch_size,
        sequence=sequence,
        precision=precision,
        text=text,
        seed=seed,
        device=device,
        ledger=ledger,
        gone_s=time.monotonic() - context.obj if isinstance(context.obj, float) else 0.0,
    )
    elsewhere = checked_target(target, dry=dry, layout=settings.layout)
    # torch is imported from here on: mistakes in the call are already answered.
    if dry and settings.layout is not None:
        from ratchet.scale.parallel.show import rank_levers_report
        from ratchet.scale.parallel.turn import levers_on_ranks

        levers, reasons = levers_on_ranks(settings)
        return show(
            as_json,
            lambda: {"levers": list(levers), "not_tried": reasons},
            lambda: rank_levers_report(levers, reasons),
        )
    from ratchet.train.turn.comparisons import TurnProgress

    with TurnProgress(settings.budget_s) as progress:
        if dry:
            from ratchet.train.turn.dry_run import dry_run

            plan = dry_run(settings, progress, target=elsewhere)
        else:
            from ratchet.scale.optimize import run

            found = run(settings, progress)
    if dry:
        from ratchet.train.turn.show import dry_run_report

        return show(as_json, plan.to_json, lambda: dry_run_report(plan))
    from ratchet.train.turn.loop import Outcome

    if isinstance(found, Outcome):
        from ratchet.train.turn.show import optimize_report

        show(as_json, lambda: found.result, lambda: optimize_report(found.result))
    else:
        from ratchet.scale.parallel.show import parallel_turn_report

        show(as_json, found.document, lambda: parallel_turn_report(found))
