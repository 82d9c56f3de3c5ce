"""`ratchet optimize`: make one workload's training step faster."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.base.errors import RatchetError
from ratchet.cli.app import (
    AsJson,
    BatchSize,
    Debug,
    DeviceName,
    LedgerUrl,
    ParallelWords,
    PrecisionName,
    SequenceLength,
    TextFile,
    app,
    print_json,
    print_result,
)

if TYPE_CHECKING:
    from ratchet.train.turn.settings import Settings
    from ratchet.train.workloads.parallel import ParallelLayout


def _checked_seed(seed: int) -> int:
    from ratchet.train.turn.settings import check_seed

    check_seed(seed)
    return seed


def _dry_run_on_ranks(settings: Settings, layout: ParallelLayout, *, as_json: bool) -> None:
    from ratchet.scale.parallel.levers import ONE_PROCESS, find_rank_levers, why_no_process
    from ratchet.scale.parallel.show import rank_levers_report
    from ratchet.scale.parallel.turn import check_rank_lever, check_ranks

    only = settings.try_lever
    check_rank_lever(only)
    check_ranks(settings, layout)
    found, reasons = find_rank_levers(
        layout,
        device=str(settings.options["device"]),
        only=only,
        keep_precision=settings.keep_precision,
    )
    levers = {one.name: one.summary for one in found}
    if (why := why_no_process(layout, only=only)) is None:
        levers[ONE_PROCESS] = "each rank runs its step by the recipe of a turn of one process"
    else:
        reasons[ONE_PROCESS] = why
    if as_json:
        print_json({"levers": list(levers), "not_tried": reasons})
    else:
        print_result(rank_levers_report(levers, reasons))


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
        Path, typer.Option(help="Folder for recipe.json, result.json and report.html.")
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
    launches: Annotated[int, typer.Option(min=1, help="Process launches of the final run.")] = 3,
    parallel: ParallelWords = None,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    seed: Annotated[
        int, typer.Option(callback=_checked_seed, help="Seed of weights and data.")
    ] = 0,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a training step faster: measure it, try changes, prove them, write a recipe.

    With --parallel, changes in how ranks communicate are tried too, and the slowest rank decides.
    """
    from ratchet.train.turn.settings import checked_target, make_settings
    from ratchet.train.workloads.parallel import parse_parallel

    layout = None if parallel is None else parse_parallel(parallel)
    settings = make_settings(
        workload,
        budget=budget,
        out=out,
        keep_precision=keep_precision,
        try_lever=try_lever if layout is None else None,
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
    if elsewhere is not None and layout is not None:
        raise RatchetError("--target emulates one process: leave --parallel out")

    # torch is imported from here on: mistakes in the call are already answered.
    settings = replace(settings, try_lever=try_lever)
    if layout is not None and dry:
        _dry_run_on_ranks(settings, layout, as_json=as_json)
        return
    from ratchet.scale import optimize as api
    from ratchet.scale.parallel.show import parallel_turn_report
    from ratchet.train.turn.comparisons import TurnProgress
    from ratchet.train.turn.dry_run import dry_run
    from ratchet.train.turn.show import dry_run_report, optimize_report

    with TurnProgress(settings.budget_s) as progress:
        if dry:
            plan = dry_run(settings, progress, target=elsewhere)
        elif layout is not None:
            ranks = api.run_parallel(settings, layout, progress)
        else:
            outcome = api.run(settings, progress)
    if dry:
        if as_json:
            print_json(plan.to_json())
        else:
            print_result(dry_run_report(plan))
    elif layout is not None:
        (print_json(ranks.document()) if as_json else print_result(parallel_turn_report(ranks)))
    elif as_json:
        print_json(outcome.result)
    else:
        print_result(optimize_report(outcome.result))
