"""`ratchet memory`: what a step needs, and what each block must recompute to fit a budget."""

from __future__ import annotations

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option

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
