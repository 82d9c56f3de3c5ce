"""The levers, by name and as a list: `operators.LEVERS` has them in trial order."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.train.levers import system
from ratchet.train.levers.base import Lever, Situation
from ratchet.train.levers.kernels import kernel_lever_names, kernel_levers
from ratchet.train.levers.operators import LEVERS
from ratchet.train.workloads.config import StepConfig

__all__ = [
    "LEVERS",
    "Lever",
    "Situation",
    "all_levers",
    "check_lever",
    "find_lever",
    "kernel_levers",
]

PLANNED = "checkpointing="
"""Prefix of the lever that sets a plan of `ratchet memory`: `checkpointing=plan:ffnn`, with others
behind it as in `checkpointing=plan:ffnn+chunked-logits+micro-batches=4`."""


def check_lever(name: str) -> None:
    """Raise a RatchetError that lists the levers if `name` is unknown; imports no torch."""
    if name.startswith(PLANNED):
        planned_lever(name)
        return
    if name.startswith(system.MICRO_BATCHES_NAME):
        micro_batches(name)
        return
    known = (*(lever.name for lever in LEVERS), *kernel_lever_names())
    if name not in known:
        raise RatchetError(
            f"unknown lever {name!r}: the levers are {', '.join(known)}, {PLANNED}PLAN"
        )


def find_lever(name: str) -> Lever:
    """Return the lever that `check_lever` accepts."""
    if name.startswith(PLANNED):
        return planned_lever(name)
    if name.startswith(system.MICRO_BATCHES_NAME):
        return micro_batches(name)
    return all_levers()[name]


def micro_batches(name: str) -> Lever:
    """Return the lever that cuts each batch into as many parts as its name says."""
    parts = name.removeprefix(system.MICRO_BATCHES_NAME)
    if not parts.isdecimal() or int(parts) < 2:
        raise RatchetError(f"lever {name!r} cuts no batch: write micro-batches=2 or more")
    summary = system.MICRO_BATCHES.summary.replace("2", parts)
    return replace(system.MICRO_BATCHES, name=name, value=int(parts), summary=summary)


def planned_lever(name: str) -> Lever:
    """Return the lever that makes each block recompute as its name says, with those behind it."""
    plan, *others = name.removeprefix(PLANNED).split("+")
    for one in others:
        check_lever(one)
    also = [find_lever(one) for one in others]
    try:
        msgspec.convert({"checkpointing": plan}, StepConfig)
    except msgspec.ValidationError:
        raise RatchetError(
            f"lever {name!r} is no plan: write none, selective, blocks:2, or the plan that "
            "`ratchet memory` printed, such as plan:ffnn"
        ) from None
    return replace(
        system.CHECKPOINTING,
        name=name,
        value=plan,
        summary="; ".join([f"blocks recompute as planned: {plan}", *(one.summary for one in also)]),
        also=tuple((one.field, one.value) for one in also),
        applies=lambda situation: None,
    )


def all_levers() -> dict[str, Lever]:
    """Return every lever by name, including the library's kernels."""
    return {lever.name: lever for lever in (*LEVERS, *kernel_levers())}
