"""The levers. `LEVERS` lists them in trial order, most promising first."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from ratchet.base.errors import RatchetError
from ratchet.optimize.levers import operators, system
from ratchet.optimize.levers.base import Lever, Situation
from ratchet.optimize.levers.kernels import kernel_lever_names, kernel_levers
from ratchet.workloads.config import StepConfig

__all__ = [
    "LEVERS",
    "Lever",
    "Situation",
    "all_levers",
    "check_lever",
    "find_lever",
    "kernel_levers",
]

LEVERS: tuple[Lever, ...] = (
    operators.COMPILE,
    operators.BF16_WEIGHTS,
    system.MALLOPT,
    system.HUGE_PAGES,
    system.THREADS,
    operators.FUSED_OPTIMIZER,
    operators.BF16_AUTOCAST,
    operators.CUDA_GRAPHS,
    operators.COMPILE_MAX_AUTOTUNE,
    operators.COORDINATE_DESCENT,
    system.JEMALLOC,
    system.TCMALLOC,
    system.EXPANDABLE_SEGMENTS,
    operators.ATTENTION_FLASH,
    operators.ATTENTION_EFFICIENT,
    operators.ATTENTION_CUDNN,
    operators.ATTENTION_MATH,
    operators.AOTRITON,
    operators.HIPBLASLT,
    operators.TUNABLEOP,
    operators.MATMUL_PRECISION,
    system.AFFINITY,
    system.PREALLOCATE,
    operators.FOREACH_OPTIMIZER,
    system.CHECKPOINTING,
)


PLANNED = "checkpointing="
"""Prefix of the lever that sets a plan of `ratchet memory`, as in `checkpointing=plan:ffnn`."""


def check_lever(name: str) -> None:
    """Raise a RatchetError that lists the levers if `name` is unknown; imports no torch."""
    if name.startswith(PLANNED):
        planned_lever(name)
        return
    known = (*(lever.name for lever in LEVERS), *kernel_lever_names())
    if name not in known:
        raise RatchetError(
            f"unknown lever {name!r}: the levers are {', '.join(known)}, {PLANNED}PLAN"
        )


def find_lever(name: str) -> Lever:
    """Return the lever that `check_lever` accepts."""
    return planned_lever(name) if name.startswith(PLANNED) else all_levers()[name]


def planned_lever(name: str) -> Lever:
    """Return the lever that makes each block recompute as its name says."""
    plan = name.removeprefix(PLANNED)
    try:
        StepConfig(checkpointing=plan)
    except ValidationError:
        raise RatchetError(
            f"lever {name!r} is no plan: write none, selective, blocks:2, or the plan that "
            "`ratchet memory` printed, such as plan:ffnn"
        ) from None
    return replace(
        system.CHECKPOINTING,
        name=name,
        value=plan,
        summary=f"blocks recompute as planned: {plan}",
        applies=lambda situation: None,
    )


def all_levers() -> dict[str, Lever]:
    """Return every lever by name, including the library's kernels."""
    return {lever.name: lever for lever in (*LEVERS, *kernel_levers())}
