"""The levers, one file each. `LEVERS` lists them in trial order, most promising first."""

from __future__ import annotations

from ratchet.errors import RatchetError
from ratchet.optimize.levers import (
    affinity,
    allocator_jemalloc,
    allocator_mallopt,
    allocator_tcmalloc,
    aotriton,
    attention_backend,
    bf16_autocast,
    bf16_master,
    checkpointing,
    compile_default,
    compile_max_autotune,
    foreach_optimizer,
    fused_optimizer,
    hipblaslt,
    huge_pages,
    matmul_precision,
    preallocate,
    threads,
    tunableop,
)
from ratchet.optimize.levers.base import Lever, Situation
from ratchet.optimize.levers.kernels import kernel_lever_names, kernel_levers

__all__ = ["LEVERS", "Lever", "Situation", "all_levers", "check_lever", "kernel_levers"]

LEVERS: tuple[Lever, ...] = (
    compile_default.LEVER,
    bf16_master.LEVER,
    allocator_mallopt.LEVER,
    huge_pages.LEVER,
    threads.LEVER,
    fused_optimizer.LEVER,
    bf16_autocast.LEVER,
    compile_max_autotune.LEVER,
    allocator_jemalloc.LEVER,
    allocator_tcmalloc.LEVER,
    attention_backend.LEVER,
    aotriton.LEVER,
    hipblaslt.LEVER,
    tunableop.LEVER,
    matmul_precision.LEVER,
    affinity.LEVER,
    preallocate.LEVER,
    foreach_optimizer.LEVER,
    checkpointing.LEVER,
)


def check_lever(name: str) -> None:
    """Raise a RatchetError that lists the levers if `name` is unknown; imports no torch."""
    known = (*(lever.name for lever in LEVERS), *kernel_lever_names())
    if name not in known:
        raise RatchetError(f"unknown lever {name!r}: the levers are {', '.join(known)}")


def all_levers() -> dict[str, Lever]:
    """Return every lever by name, including the library's kernels."""
    return {lever.name: lever for lever in (*LEVERS, *kernel_levers())}
