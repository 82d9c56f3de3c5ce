"""Arguments and options that `judge` and `inspect` share."""

from __future__ import annotations

from typing import Annotated

import typer

PROBLEM_HELP = "A problem's file (KernelBench's form or ours), or the name of a shipped problem."
EntryName = Annotated[
    str | None,
    typer.Option(
        "--entry", metavar="NAME", help="Function to call. Default: the one named after PROBLEM."
    ),
]
ScaleFactor = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="auto|N",
        help="Shrink a KernelBench problem to fit this machine, or its emulator, or by a factor.",
    ),
]
