"""`ratchet inspect`: what a kernel compiles to on GPUs that are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import Debug, Json, app, print_json
from ratchet.cli.judging import (
    PROBLEM_HELP,
    EntryName,
    ScaleFactor,
    TierName,
    parse_scale,
    parse_tier,
)


@app.command()
def inspect(
    problem: Annotated[str, typer.Argument(help=PROBLEM_HELP)],
    kernel: Annotated[Path, typer.Argument(help="A file: .py (Triton) or .hip.")],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAMES",
            help="Targets, with commas between them. Default: all of AMD's.",
        ),
    ] = "",
    case: Annotated[
        str | None,
        typer.Option(help="The case whose launches are taken. Default: the largest timed one."),
    ] = None,
    entry: EntryName = None,
    tier: TierName = "gpu",
    scale: ScaleFactor = "1",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What a kernel compiles to on AMD targets, without a GPU: registers, spills, occupancy."""
    from ratchet.judge.api import as_kernel, as_problem
    from ratchet.judge.static_profile import TARGETS, inspect_kernel
    from ratchet.report.static_table import print_inspection

    asked = as_problem(problem, tier=parse_tier(tier), scale=parse_scale(scale))
    found = inspect_kernel(
        as_kernel(kernel, asked, entry=entry),
        asked,
        [name.strip() for name in target.split(",") if name.strip()] or TARGETS,
        case=case,
    )
    (print_json if as_json else print_inspection)(found)
