"""The arguments and options that the commands on kernels share."""

from __future__ import annotations

from typing import Annotated

import typer

PROBLEM_HELP = "A problem's file (KernelBench's form or ours), or the name of a suite's problem."
EntryName = Annotated[
    str | None,
    typer.Option("--entry", metavar="NAME", help="The function to call, where it is not obvious."),
]
ScaleFactor = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="auto|N",
        help="Shrink a KernelBench problem to fit this machine, or by a factor such as 0.1.",
    ),
]
