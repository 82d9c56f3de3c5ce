"""The options that shape a workload, shared by the commands that build one."""

from __future__ import annotations

from typing import Annotated

import typer

BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Sequences (or images) in a batch.")
]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence", min=2, help="Tokens in a sequence.")
]
PrecisionName = Annotated[
    str | None,
    typer.Option("--precision", help="How the step is written: fp32, bf16_autocast, bf16_master."),
]
TextFile = Annotated[
    str | None,
    typer.Option("--text", metavar="FILE", help="Text to train on. Default: Python's own sources."),
]
