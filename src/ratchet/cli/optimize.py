"""`ratchet optimize`: make one workload's training step faster."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import PAGE, RECIPE, OutFolder


@app.command()
def optimize(
    context: typer.Context,
    workload: str = argument(
        "A built-in workload (llama-60m), hf:NAME_OR_PATH, or your own file.py:function. "
        "The function returns your script's (model, optimizer, step, batch), a "
        "transformers.Trainer or a ratchet.Workload."
    ),
    budget: str = option("30m", "Time limit of the whole command: 90s, 30m, 2h."),
    out: Path = option(
        Path("ratchet-out"),
        "Folder for recipe.json, result.json and report.html.",
        "FOLDER",
        parser=OutFolder(names=("recipe.json", "result.json", "report.html"), signs=(PAGE, RECIPE)),
    ),
    keep_precision: bool = option(False, "Forbid changes to the arithmetic."),
    try_lever: str | None = option(
        None, "Try only this lever; --dry-run lists them.", "LEVER", flag="--try"
    ),
    dry: bool = option(False, "Print what would be tried, and stop.", flag="--dry-run"),
    target: str | None = option(
        None,
        "With --dry-run: an AMD GPU that is not here, such as gfx942. The step's kernels "
        "run in the emulator.",
    ),
    resume: bool = option(False, "Continue an interrupted run."),
    launches: int = option(3, "Process launches of the final run.", min=1, max=1000),
    until_proven: bool = option(False, "End once a recipe is proven faster."),
    parallel: cli.ParallelWords = None,
    step: cli.StepOptions = cli.StepOptions(),
    seed: int = cli.seed_option("Seed of weights and data."),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
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
        **vars(step),
        seed=seed,
        ledger=ledger,
        gone_s=time.monotonic() - context.obj if isinstance(context.obj, float) else 0.0,
    )
    elsewhere = checked_target(target, dry=dry, layout=settings.layout)
    # torch is imported from here on: mistakes in the call are already answered.
    if dry and settings.layout is not None:
        from ratchet.scale.parallel.show import rank_levers_report
        from ratchet.scale.parallel.turn import levers_on_ranks

        levers, reasons = levers_on_ranks(settings)
        return cli.show(
            as_json,
            lambda: {"levers": list(levers), "not_tried": reasons},
            lambda: rank_levers_report(levers, reasons),
        )
    from ratchet.train.turn.comparisons import TurnProgress

    with TurnProgress(settings.budget_s) as progress:
        if dry:
            from ratchet.scale.plan.time import products_s
            from ratchet.train.turn.dry_run import dry_run

            plan = dry_run(settings, progress, target=elsewhere, product_times=products_s)
        else:
            from ratchet.scale.optimize import run

            found = run(settings, progress)
    if dry:
        from ratchet.train.turn.show import dry_run_report

        return cli.show(as_json, plan.to_json, lambda: dry_run_report(plan))
    from ratchet.train.turn.loop import Outcome

    if isinstance(found, Outcome):
        from ratchet.train.turn.show import optimize_report

        cli.show(as_json, lambda: found.result, lambda: optimize_report(found.result))
    else:
        from ratchet.scale.parallel.show import parallel_turn_report

        cli.show(as_json, found.document, lambda: parallel_turn_report(found))
