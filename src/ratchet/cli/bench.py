"""`ratchet bench` times workloads as written; `ratchet device` describes this machine."""

from __future__ import annotations

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
    print_json,
    print_result,
    show,
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
    parallel: ParallelWords = None,
    steps: Annotated[
        int, typer.Option(min=3, max=1_000_000, help="Timed steps per workload.")
    ] = 10,
    batch_size: BatchSize = None,
    sequence: SequenceLength = None,
    precision: PrecisionName = None,
    text: TextFile = None,
    device: DeviceName = "auto",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure step time, tokens/s, MFU and peak memory, and store them in the ledger.

    With --parallel, torchrun starts the ranks on this machine, and the slowest rank decides.
    """
    from ratchet.train.turn.settings import workload_options
    from ratchet.train.workloads.parallel import parse_parallel

    layout = None if parallel is None else parse_parallel(parallel)
    options = workload_options(workloads or [], batch_size, sequence, precision, text, device)

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
        documents = [record_parallel(one, device=device, ledger=ledger) for one in figures]
        if as_json:
            print_json({"results": documents})
        else:
            for one in figures:
                print_result(parallel_bench_report(one))
        return
    results = bench_all(workloads or [], options=options, steps=steps, ledger=ledger)
    show(as_json, lambda: {"results": results}, lambda: bench_report(results))


@app.command()
def device(
    name: DeviceName = "auto",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Measure the ceilings again; the best of each rate counts."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Describe this machine and measure its ceilings."""
    from ratchet.base.devices import ceilings, describe, device_report
    from ratchet.base.devices.probe import probe

    found = probe(name)
    report = describe(found, ceilings.measure(found, again="now" if fresh else "due"))
    show(as_json, lambda: report, lambda: device_report(report))
