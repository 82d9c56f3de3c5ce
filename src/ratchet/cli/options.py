"""Options that shape a workload, for all commands that build one."""

from __future__ import annotations

from typing import Annotated

import typer

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
