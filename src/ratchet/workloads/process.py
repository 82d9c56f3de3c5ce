"""Process-wide settings of a step: threads, affinity, allocator."""

from __future__ import annotations

import ctypes
import os

import psutil
import torch

from ratchet.workloads.config import StepConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of mallopt(3)'s parameters, from glibc's malloc.h."""
MALLOPT = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1))
"""Settings that disable mmap and trimming, so the next step reuses pages that are already mapped.

M_MMAP_THRESHOLD does not work here: glibc refuses values above 32 MiB. M_ARENA_MAX is unchanged,
because one arena for forward and backward threads made a step 6 to 27 % slower.
"""


def enter(config: StepConfig) -> None:
    """Apply threads, affinity, matmul precision and mallopt to this process.

    Default values change nothing, so the user's own settings survive.
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
    """Pin the process to its first `threads` allowed cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    psutil.Process().cpu_affinity(allowed[: threads or len(allowed)])
