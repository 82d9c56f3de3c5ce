"""The settings of a step that belong to the whole process: threads, affinity, allocator."""

from __future__ import annotations

import ctypes
import os

import psutil
import torch

from ratchet.workloads.config import StepConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of mallopt(3)'s parameters, from glibc's malloc.h."""
MALLOPT = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1))
"""No mmap and no trimming: the next step's outputs are pages that are mapped already.
M_MMAP_THRESHOLD would not do (glibc refuses values above 32 MiB), and M_ARENA_MAX stays as it is:
one arena for forward and backward threads made a step 6 to 27 % slower."""


def enter(config: StepConfig) -> None:
    """Apply threads, affinity, matmul precision and mallopt to this process.

    Default values leave the process as it is, so that nothing the user set is undone.
    """
    if config.affinity:
        _pin(config.threads)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.matmul_precision != "highest":
        torch.set_float32_matmul_precision(config.matmul_precision)
    if config.allocator == "mallopt":
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks instead of returning them; False without glibc."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in MALLOPT)


def _pin(threads: int | None) -> None:
    """Keep the process on its first `threads` allowed cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    psutil.Process().cpu_affinity(allowed[: threads or len(allowed)])
