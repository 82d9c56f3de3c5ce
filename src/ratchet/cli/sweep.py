"""`ratchet sweep`: one training step of every model type of a library."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.cli.app import AsJson, DeviceName, app, argument, listed, option, show
from ratchet.cli.outputs import ROWS, OutFolder

TABLE = "table.md"


@app.command()
def sweep(
    library: str = argument("hf: transformers.", "LIBRARY"),
    types: str = option("", "Only these model types, even if they have a row.", "A,B"),
    sample: int | None = option(None, "Only N types, always the same.", "N", min=1),
    budget: str = option("", "Start no type after this: 90s, 30m, 2h.", "TIME"),
    limit: str = option("10m", "Time for one type with all its steps.", "TIME"),
    quick: bool = option(
        False,
        "Let Inductor call torch's own operators and generate no code: a quarter of the "
        "time. Graphs, kernels' call sites and gradients are tested as ever.",
    ),
    out: Path = option(
        Path("ratchet-sweep"),
        "Folder for rows, table and scripts.",
        "FOLDER",
        parser=OutFolder(names=("rows.jsonl", TABLE, "repro/*"), signs=(ROWS,)),
    ),
    device: DeviceName = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run one training step of every model type: as written, compiled and with kernels.

    Models are tiny, with random weights and no dropout; nothing is downloaded. Each type runs in
    a process of its own. Rows are kept as they come, and the same command continues.

    Exit code 0: at least 95 % of the types that train as written train with Ratchet, with equal
    losses. 1: fewer.
    """
    from ratchet.base.errors import GuardError
    from ratchet.train.turn.settings import parse_budget_s

    if library != "hf":
        raise GuardError(f"{library!r} is no library that can be swept: write ratchet sweep hf")
    budget_s = parse_budget_s(budget) if budget else float("inf")
    limit_s = parse_budget_s(limit)

    from ratchet.base.devices.probe import probe
    from ratchet.base.files import write_whole
    from ratchet.guard.sweep import ROWS as ROWS_FILE
    from ratchet.guard.sweep import SweepLine, SweepSettings, sweep_markdown, sweep_report
    from ratchet.guard.sweep import sweep as run

    settings = SweepSettings(
        out=out,
        types=listed(types),
        sample=sample,
        budget_s=budget_s,
        limit_s=limit_s,
        quick=quick,
        device=probe(device).kind,
    )
    with SweepLine() as progress:
        result = run(settings, progress.show)
    write_whole(out / TABLE, sweep_markdown(result).encode())
    written = [str(out / name) for name in (ROWS_FILE, TABLE)]
    show(
        as_json,
        lambda: result.as_json() | {"written": written},
        lambda: sweep_report(result, written),
    )
    if not result.passed:
        raise typer.Exit(1)
