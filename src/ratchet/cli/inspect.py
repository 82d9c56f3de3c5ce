"""`ratchet inspect`: compile a kernel for GPUs that are not here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, app, print_json, print_result
from ratchet.cli.judging import PROBLEM_HELP, EntryName, ScaleFactor

COMPILED, NOT_COMPILED = 0, 1


@app.command()
def inspect(
    problem: Annotated[str, typer.Argument(help=PROBLEM_HELP)],
    kernel: Annotated[
        Path,
        typer.Argument(help="The kernel's file: .py (Triton) or .hip.", readable=False),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAMES",
            help="Targets, separated by commas. Default: all AMD targets.",
        ),
    ] = "",
    case: Annotated[
        str | None,
        typer.Option(help="Case whose launches to compile. Default: the largest timed one."),
    ] = None,
    entry: EntryName = None,
    tier: Annotated[
        str | None,
        typer.Option(
            "--tier",
            metavar="TIER",
            help="Sizes to launch with: ci, cpu or gpu. Default: the largest that PROBLEM has.",
        ),
    ] = None,
    scale: ScaleFactor = "1",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compile a kernel for AMD GPUs without one: registers, spills, occupancy.

    Exit code 0: it compiled on every target. 1: a target failed, the
    kernel launches nothing, or the problem cannot be used.
    2: a mistake in the call.
    """
    from ratchet.amd.architectures import TARGETS, find_architectures
    from ratchet.judge.api import as_kernel, as_problem, check_texts
    from ratchet.judge.problems.problem import LARGEST_FIRST
    from ratchet.judge.terms import parse_scale, parse_tier

    tiers = LARGEST_FIRST if tier is None else (parse_tier(tier),)
    factor = parse_scale(scale)
    targets = [name.strip() for name in target.split(",") if name.strip()] or TARGETS
    find_architectures(targets)
    read = check_texts(problem, kernel, entry=entry)

    from ratchet.amd.profile.inspection import (
        all_compiled,
        find_action,
        inspect_kernel,
        inspection_report,
    )

    if read is not None:
        find_action(read.language)
    asked = as_problem(problem, tiers=tiers, scale=factor)
    found = inspect_kernel(as_kernel(kernel, asked, entry=entry), asked, targets, case=case)
    if as_json:
        print_json(found)
    elif found["targets"]:
        print_result(inspection_report(found))
    else:
        print(f"ratchet: {found['reason']}", file=sys.stderr)
    raise typer.Exit(COMPILED if all_compiled(found) else NOT_COMPILED)
