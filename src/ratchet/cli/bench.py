"""`ratchet bench` times workloads as written; `ratchet device` describes this machine."""

from __future__ import annotations

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option


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
