"""The levers. `LEVERS` lists them in trial order, most promising first."""

from __future__ import annotations

from ratchet.base.errors import RatchetError
from ratchet.optimize.levers import operators, system
from ratchet.optimize.levers.base import Lever, Situation
from ratchet.optimize.levers.kernels import kernel_lever_names, kernel_levers

__all__ = ["LEVERS", "Lever", "Situation", "all_levers", "check_lever", "kernel_levers"]

LEVERS: tuple[Lever, ...] = (
    operators.COMPILE,
    operators.BF16_WEIGHTS,
    system.MALLOPT,
    system.HUGE_PAGES,
    system.THREADS,
    operators.FUSED_OPTIMIZER,
    operators.BF16_AUTOCAST,
    operators.COMPILE_MAX_AUTOTUNE,
    system.JEMALLOC,
    system.TCMALLOC,
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


def check_lever(name: str) -> None:
    """Raise a RatchetError that lists the levers if `name` is unknown; imports no torch."""
    known = (*(lever.name for lever in LEVERS), *kernel_lever_names())
    if name not in known:
        raise RatchetError(f"unknown lever {name!r}: the levers are {', '.join(known)}")


def all_levers() -> dict[str, Lever]:
    """Return every lever by name, including the library's kernels."""
    return {lever.name: lever for lever in (*LEVERS, *kernel_levers())}
