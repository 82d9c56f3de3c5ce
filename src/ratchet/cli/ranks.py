"""`ratchet preflight` and `ratchet debug`: ranks before a job starts, and after it hung."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.cli.app import AsJson, DeviceName, app, argument, option, show


@app.command()
def preflight(
    device: DeviceName = "auto",
    time_limit: float = option(60.0, "How long a rank waits for the others.", "SECONDS", min=1),
    as_json: AsJson = False,
) -> None:
    """Measure products, memory, links, clocks and versions of all ranks, and name outliers.

    Start it with torchrun for many ranks: torchrun --no-python ... ratchet preflight. Exit code 1
    if something stands out.
    """
    from ratchet.base.devices.probe import probe

    named = probe(device).kind  # any other name is a mistake

    from ratchet.scale.ranks.preflight import preflight as check
    from ratchet.scale.ranks.preflight import preflight_report

    found = check(named, time_limit_s=time_limit)
    if found is None:  # rank 0 tells what all ranks found
        return
    show(as_json, lambda: found, lambda: preflight_report(found))
    raise typer.Exit(1 if found.outliers else 0)


@app.command()
def debug(
    dumps: list[Path] = argument(
        "Flight-recorder dumps, one a rank, or folders of them; beside them logs of "
        "torchrun and Slurm, and stacks of py-spy.",
        "DUMPS...",
    ),
    as_json: AsJson = False,
) -> None:
    """Say which rank a hanging job waits for, at which collective and line, and what follows.

    Exit code 1 if something was found, or if something could not be looked at.
    """
    from ratchet.scale.ranks.dumps import read_dumps
    from ratchet.scale.ranks.untangle import untangle, untangled_report

    found = untangle(read_dumps(dumps))
    show(as_json, lambda: found, lambda: untangled_report(found))
    raise typer.Exit(0 if found.is_clear else 1)
