"""`ratchet bench`: step time, tokens/s, MFU and peak memory of workloads as written."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.app import Debug, DeviceName, Json, LedgerUrl, app, print_json
from ratchet.cli.options import (
    BatchSize,
    PrecisionName,
    SequenceLength,
    TextFile,
)


@app.command()
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help="Workloads to measure. Default: the middle size of each family.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=3, help="Timed steps per workload.")] = 10,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure step time, tokens/s, MFU and peak memory, and store them in the ledger."""
    from ratchet.optimize.turn.settings import workload_options

    options = workload_options(workloads or [], batch_size, sequence, precision, text, device)

    # numpy and torch are imported from here on: mistakes in the call are already answered.
    from ratchet.optimize.bench import bench_all
    from ratchet.report.device import print_bench

    results = bench_all(workloads or [], options=options, steps=steps, ledger=ledger)
    if as_json:
        print_json({"results": results})
    else:
        print_bench(results)
