"""The options that shape a workload, shared by the commands that build one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.devices.probe import probe
from ratchet.errors import WorkloadError
from ratchet.workloads.names import check_name, check_options

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

PRECISIONS = ("fp32", "bf16_autocast", "bf16_master")


def workload_options(
    workloads: Sequence[str],
    batch_size: int | None,
    sequence: int | None,
    precision: str | None,
    text: Path | None,
    device: str,
) -> dict[str, Any]:
    """The keyword arguments of `workloads.load` that were given; JSON, for another process.

    Raises a RatchetError for an unknown workload and for what one of them cannot take, before torch
    is imported.
    """
    if precision is not None and precision not in PRECISIONS:
        raise WorkloadError(f"unknown precision {precision!r}: use one of {', '.join(PRECISIONS)}")
    for workload in workloads:
        check_name(workload)
        check_options(workload, batch_size=batch_size, sequence=sequence, text=text)
    options: dict[str, Any] = {"device": probe(device).kind}
    if batch_size is not None:
        options["batch_size"] = batch_size
    if sequence is not None:
        options["sequence"] = sequence
    if precision is not None:
        options["precision"] = precision
    if text is not None:
        options["text"] = str(text.absolute())
    return options
