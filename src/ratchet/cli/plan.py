"""Many ranks: `ratchet plan`, before a cluster is there, `ratchet preflight` and `debug`."""

from __future__ import annotations

from pathlib import Path

import typer

from ratchet.base.errors import PlanError
from ratchet.cli import app as cli
from ratchet.cli.app import AsJson, DeviceName, app, argument, option, show
from ratchet.cli.outputs import LAYOUTS, PAGE, OutFile, OutFolder


@app.command()
def plan(
    context: typer.Context,
    model: str | None = argument(
        "A published model (llama3-70b), a built-in workload (llama-60m), "
        "hf:TYPE_OR_FOLDER, or sizes: gpt:layers=24,hidden=2048,heads=16.",
        "[MODEL]",
        default=None,
    ),
    cluster: str | None = option(
        None, "The devices, such as mi300x:8x128 or h100:64.", "DEVICE:LOCALxNODES"
    ),
    batch: int | None = option(
        None, "Sequences of a step. Default: about four million tokens.", min=1
    ),
    sequence: int | None = option(None, "Tokens of a sequence.", min=2),
    precision: str = option(
        "bf16", "Precisions to try: bf16, fp8, mxfp8, mxfp4, nvfp4.", "NAME[,NAME]"
    ),
    stack: str = option(
        "torch",
        "Software: torch (torchtitan), torch-eager, megatron (Transformer Engine), "
        "megatron-deepep, megatron-2022, megatron-2021 or deepspeed.",
        "NAME",
    ),
    layout: str | None = option(
        None, "Plan these degrees alone: fsdp=8,tp=2.", "DEGREES", flag="--parallel"
    ),
    micro_batch: int | None = option(
        None, "Sequences of a micro-batch. Default: each power of 2 to 32.", min=1
    ),
    checkpointing: str | None = option(
        None, "none, selective or full. Default: all are tried.", "WORD"
    ),
    network: float | None = option(None, "Network bandwidth of one device.", "GB/s", min=0.001),
    power: float | None = option(None, "Watts to which each device is held.", "W", min=1),
    imbalance: float = option(
        1.0, "Tokens of the fullest rank's experts over those of the mean.", "N", min=1
    ),
    lora: bool = option(False, "Train low-rank adapters alone, and no weight."),
    calibrate: list[Path] | None = option(
        None, "Take rates of products and links from a trace.", "TRACE"
    ),
    measured: bool = option(
        False, "Compare plans with the layouts that `bench --parallel` measured on this machine."
    ),
    tokens: float | None = option(None, "Tokens of the run, as in 1e12.", "N", min=1, max=1e18),
    price: float | None = option(None, "Price of a device-hour.", "MONEY", min=0),
    days: float | None = option(
        None,
        "Without MODEL: find the largest model that is trained in N days.",
        "N",
        min=0.001,
        max=36_525,
    ),
    tokens_per_parameter: float = option(
        20.0, "Tokens of that model's run a parameter.", "N", min=0.001
    ),
    sharding: str | None = option(
        None,
        "none (DDP), optimizer (ZeRO-1) or full (FSDP). Default: all are tried; with "
        "--parallel, dp is optimizer and fsdp is full.",
        "WORD",
    ),
    savings: Path | None = option(
        None, "Tell what a recipe's proven ratio saves a fleet.", "RECIPE"
    ),
    fleet: str | None = option(None, "The fleet that --savings counts.", "DEVICE:COUNT"),
    out: Path | None = option(
        None,
        "Write plan.html, plan.json and the scripts of the best plan.",
        "FOLDER",
        parser=OutFolder(
            names=("plan.html", "plan.json", "run.sh", "job.sbatch", "jobset.yaml"),
            signs=(PAGE,),
        ),
    ),
    layouts: Path | None = option(
        None,
        "Write every layout with its costs: .csv or .json.",
        "FILE",
        parser=OutFile(signs=(LAYOUTS,)),
    ),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Plan a model's training on machines that are not here, or tell what a recipe saves."""
    from ratchet.scale import plan as ask
    from ratchet.scale.plan import show

    request = ask.PlanRequest(
        model=model,
        cluster=cluster,
        batch=batch,
        sequence=sequence,
        precisions=tuple(one.strip() for one in precision.split(",")),
        stack=stack,
        parallel=layout,
        micro_batch=micro_batch,
        checkpointing=checkpointing,
        sharding=sharding,
        network_gb_per_s=network,
        power_w=power,
        imbalance=imbalance,
        lora=lora,
        traces=tuple(calibrate or ()),
        tokens=tokens,
        price=price,
    )
    kept = "out layouts micro_batch checkpointing sharding layout"
    sizes = "batch sequence precision stack network power imbalance lora calibrate tokens"
    if measured:
        rest = "savings fleet price days tokens_per_parameter"
        cli.refuse(context, f"{kept} {sizes} {rest}", "with --measured")
        from ratchet.scale.plan.calibrate import checked_here

        if model is None or cluster is not None:
            raise PlanError(
                "--measured checks plans of a workload on this machine: give its name, such as "
                "llama-60m, and no --cluster"
            )
        checked = checked_here(model, ledger=ledger)
        document, report = show.checked_plan_document(checked), show.checked_plan_report(checked)
    elif savings is not None:
        cli.refuse(
            context,
            f"model cluster {kept} {sizes} days tokens_per_parameter",
            "with --savings",
        )
        found = ask.saved(savings, fleet, price)
        document, report = show.saved_document(found), show.saved_report(found)
    elif days is not None:
        cli.refuse(context, "out layouts tokens fleet imbalance lora", "with --days")
        largest = ask.trainable_within(request, days, tokens_per_parameter)
        document, report = show.trainables_document(largest), show.trainables_report(largest)
    else:
        cli.refuse(context, "fleet", "without --savings")
        cli.refuse(context, "tokens_per_parameter", "without --days")
        if layouts is not None:
            show.check_layouts_file(layouts)
        answer = ask.planned(request)
        if layouts is not None:
            show.write_layouts(answer, layouts)
        if out is not None:
            show.write_plan(answer, out)
        written = show.files_of(out) + ([str(layouts)] if layouts else [])
        document, report = show.plan_document(answer), show.plan_report(answer, written)
    if as_json:
        cli.print_json(document)
    else:
        cli.print_result(report)


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
