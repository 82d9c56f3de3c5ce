"""`ratchet plan`: step time, memory and cost of a model's layouts on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.base.errors import PlanError
from ratchet.cli.app import AsJson, LedgerUrl, app, finite, print_json, print_result, refuse
from ratchet.cli.outputs import LAYOUTS, PAGE, OutFile, OutFolder


@app.command()
def plan(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A published model (llama3-70b), a built-in workload (llama-60m), "
            "hf:TYPE_OR_FOLDER, or sizes: gpt:layers=24,hidden=2048,heads=16.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE:LOCALxNODES", help="The devices, such as mi300x:8x128 or h100:64."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences of a step. Default: about four million tokens."),
    ] = None,
    sequence: Annotated[int | None, typer.Option(min=2, help="Tokens of a sequence.")] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]", help="Precisions to try: bf16, fp8, mxfp8, mxfp4, nvfp4."
        ),
    ] = "bf16",
    stack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Software: torch (torchtitan), torch-eager, megatron (Transformer Engine), "
            "megatron-deepep, megatron-2022, megatron-2021 or deepspeed.",
        ),
    ] = "torch",
    layout: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            metavar="DEGREES",
            help="Plan these degrees alone: fsdp=8,tp=2.",
        ),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences of a micro-batch. Default: each power of 2 to 32."),
    ] = None,
    checkpointing: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="none, selective or full. Default: all are tried."),
    ] = None,
    network: Annotated[
        float | None,
        typer.Option(
            parser=finite(least=0.001), metavar="GB/s", help="Network bandwidth of one device."
        ),
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(
            parser=finite(least=1), metavar="W", help="Watts to which each device is held."
        ),
    ] = None,
    imbalance: Annotated[
        float,
        typer.Option(
            parser=finite(least=1),
            metavar="N",
            help="Tokens of the fullest rank's experts over those of the mean.",
        ),
    ] = 1.0,
    lora: Annotated[
        bool, typer.Option("--lora", help="Train low-rank adapters alone, and no weight.")
    ] = False,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(metavar="TRACE", help="Take rates of products and links from a trace."),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured",
            help="Compare plans with the layouts that `bench --parallel` measured on this machine.",
        ),
    ] = False,
    tokens: Annotated[
        float | None,
        typer.Option(
            parser=finite(least=1, most=1e18), metavar="N", help="Tokens of the run, as in 1e12."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(parser=finite(least=0), metavar="MONEY", help="Price of a device-hour."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            parser=finite(least=0.001, most=36_525),
            metavar="N",
            help="Without MODEL: find the largest model that is trained in N days.",
        ),
    ] = None,
    tokens_per_parameter: Annotated[
        float,
        typer.Option(
            parser=finite(least=0.001), metavar="N", help="Tokens of that model's run a parameter."
        ),
    ] = 20.0,
    sharding: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="none (DDP), optimizer (ZeRO-1) or full (FSDP). Default: all are tried; with "
            "--parallel, dp is optimizer and fsdp is full.",
        ),
    ] = None,
    savings: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="Tell what a recipe's proven ratio saves a fleet."),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(metavar="DEVICE:COUNT", help="The fleet that --savings counts.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            parser=OutFolder(
                names=("plan.html", "plan.json", "run.sh", "job.sbatch", "jobset.yaml"),
                signs=(PAGE,),
            ),
            help="Write plan.html, plan.json and the scripts of the best plan.",
        ),
    ] = None,
    layouts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=OutFile(signs=(LAYOUTS,)),
            help="Write every layout with its costs: .csv or .json.",
        ),
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
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
        refuse(context, f"{kept} {sizes} {rest}", "with --measured")
        from ratchet.scale.plan.calibrate import checked_here

        if model is None or cluster is not None:
            raise PlanError(
                "--measured checks plans of a workload on this machine: give its name, such as "
                "llama-60m, and no --cluster"
            )
        checked = checked_here(model, ledger=ledger)
        document, report = show.checked_plan_document(checked), show.checked_plan_report(checked)
    elif savings is not None:
        refuse(
            context,
            f"model cluster {kept} {sizes} days tokens_per_parameter",
            "with --savings",
        )
        found = ask.saved(savings, fleet, price)
        document, report = show.saved_document(found), show.saved_report(found)
    elif days is not None:
        refuse(context, "out layouts tokens fleet imbalance lora", "with --days")
        largest = ask.trainable_within(request, days, tokens_per_parameter)
        document, report = show.trainables_document(largest), show.trainables_report(largest)
    else:
        refuse(context, "fleet", "without --savings")
        refuse(context, "tokens_per_parameter", "without --days")
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
        print_json(document)
    else:
        print_result(report)
