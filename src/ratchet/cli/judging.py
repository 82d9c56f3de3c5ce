"""The arguments and options that the commands on kernels share."""

from __future__ import annotations

from typing import Annotated, cast, get_args

import typer

from ratchet.errors import RatchetError
from ratchet.judge.api import Scale
from ratchet.kernels.problem import Tier

PROBLEM_HELP = "A problem's file (KernelBench's form or ours), or the name of a suite's problem."
EntryName = Annotated[
    str | None,
    typer.Option("--entry", metavar="NAME", help="The function to call, where it is not obvious."),
]
TierName = Annotated[
    str, typer.Option("--tier", metavar="TIER", help="Sizes to judge on: ci, cpu or gpu.")
]
ScaleFactor = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="auto|N",
        help="Shrink a KernelBench problem to fit this machine, or by a factor such as 0.1.",
    ),
]


def parse_tier(text: str) -> Tier:
    """One of the tiers."""
    if text not in get_args(Tier):
        raise RatchetError(f"unknown tier {text!r}: use one of {', '.join(get_args(Tier))}")
    return cast(Tier, text)


def parse_device(text: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:N`; whether it is there is the judge's to say."""
    kind, colon, index = text.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and not (kind == "cuda" and index.isdigit())):
        raise RatchetError(f"no device {text!r}: use auto, cpu, cuda or cuda:N")
    return text


def parse_scale(text: str) -> Scale:
    """`auto`, or a factor in (0, 1]."""
    if text == "auto":
        return "auto"
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor <= 1:
        raise RatchetError(f"scale {text!r} is neither auto nor a factor above 0 and at most 1")
    return None if factor == 1 else factor
