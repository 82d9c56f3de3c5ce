"""Options that shape a workload, for all commands that build one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import typer


def finite(*, least: float | None = None) -> Callable[[str], float]:
    """Return the parser of a float option, which refuses nan and infinity, at least `least`.

    Every option that takes a float has it; typer's own takes nan for a number in any range.
    """

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise typer.BadParameter(f"{text!r} is no finite number: give one such as 0.5")
        if least is not None and value < least:
            raise typer.BadParameter(f"{value:g} is below {least:g}: give {least:g} or more")
        return value

    return parse


BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Sequences (or images) per batch.")
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence", min=2, help="Tokens per sequence.")
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision", help="Precision of the step as written: fp32, bf16_autocast, bf16_master."
    ),
]
TextFile = Annotated[
    str | None,
    typer.Option("--text", metavar="FILE", help="Text to train on. Default: Python's own sources."),
]
ParallelWords = Annotated[
    str | None,
    typer.Option(
        "--parallel",
        metavar="LAYOUT",
        help="Ranks on this machine: dp=2, fsdp=2,tp=2 or pp=2,schedule=zero-bubble. Words: dp, "
        "fsdp, tp, pp, vpp, cp, ep, micro, schedule.",
    ),
]
