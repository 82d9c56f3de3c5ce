"""One training step: `ratchet optimize`, `bench`, `device`, `memory` and `export`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import PAGE, PATCH, RECIPE, OutEither, OutFile, OutFolder, Output, Values
from ratchet.train.workloads.names import LoadOptions


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


TOO_MUCH = 1


@app.command()
def memory(
    workload: str = argument(
        "A built-in workload (gpt2-124m), hf:NAME_OR_PATH, or your own file.py:function.",
        "WORKLOAD",
    ),
    fit: str | None = option(
        None,
        "Plan checkpointing and other levers for this budget, and run the plan: 2GiB, 800MiB.",
        "SIZE",
    ),
    compiled: bool = option(False, "Measure the step under torch.compile.", flag="--compile"),
    fused: bool = option(False, "Update with the optimizer's fused implementation."),
    step: cli.StepOptions = cli.StepOptions(),
    as_json: cli.AsJson = False,
) -> None:
    """Measure the memory of a training step, and fit the step into a budget.

    The exit code is 1 if the planned step needs more than the budget when it runs.
    """
    from ratchet.train.memory import parse_size

    budget_bytes = parse_size(fit) if fit is not None else None
    options = step.of(workload)

    # torch is imported from here on: mistakes in the call are already answered.
    from ratchet.base.show.terminal import MovingLine
    from ratchet.train.memory.fit import MemoryRequest, step_memory
    from ratchet.train.memory.show import memory_document, memory_report

    request = MemoryRequest(
        workload=workload,
        options=options,
        budget_bytes=budget_bytes,
        compiled=compiled,
        fused=fused,
    )
    with MovingLine("loading the workload", 1.0) as line:
        found = step_memory(request, lambda words: line.move(f"measuring {words}"))
    cli.show(as_json, lambda: memory_document(found), lambda: memory_report(found))
    if found.fitted is not None and not found.fitted.fits:
        raise typer.Exit(TOO_MUCH)


@app.command()
def bench(
    workloads: list[str] | None = argument(
        "Workloads to measure. Default: the middle size of each family.",
        "[WORKLOAD]...",
        default=None,
    ),
    parallel: cli.ParallelWords = None,
    steps: int = option(10, "Timed steps per workload.", min=3, max=1_000_000),
    step: cli.StepOptions = cli.StepOptions(),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure step time, tokens/s, MFU and peak memory, and store them in the ledger.

    With --parallel, torchrun starts the ranks on this machine, and the slowest rank decides.
    """
    from ratchet.train.workloads.parallel import parse_parallel

    layout = None if parallel is None else parse_parallel(parallel)
    options = step.of(*(workloads or ()))

    # numpy and torch are imported from here on: mistakes in the call are already answered.
    from ratchet.train.turn.bench import bench_all
    from ratchet.train.workloads.bench import bench_report
    from ratchet.train.workloads.names import SIZES

    if layout is not None:
        from ratchet.scale.parallel.bench import bench_parallel, record_parallel
        from ratchet.scale.parallel.show import parallel_bench_report

        figures = [
            bench_parallel(one, layout, options=options, steps=steps) for one in workloads or SIZES
        ]
        documents = [record_parallel(one, device=step.device, ledger=ledger) for one in figures]
        if as_json:
            cli.print_json({"results": documents})
        else:
            for one in figures:
                cli.print_result(parallel_bench_report(one))
        return
    results = bench_all(workloads or [], options=options, steps=steps, ledger=ledger)
    cli.show(as_json, lambda: {"results": results}, lambda: bench_report(results))


@app.command()
def device(
    name: cli.DeviceName = "auto",
    fresh: bool = option(False, "Measure the ceilings again; the best of each rate counts."),
    as_json: cli.AsJson = False,
) -> None:
    """Describe this machine and measure its ceilings."""
    from ratchet.base.devices import ceilings, describe, device_report
    from ratchet.base.devices.probe import probe

    found = probe(name)
    report = describe(found, ceilings.measure(found, again="now" if fresh else "due"))
    cli.show(as_json, lambda: report, lambda: device_report(report))


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
