"""Effects of a step's settings on its process: its environment at start, and calls once it runs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.train.workloads.config import StepConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of mallopt(3)'s parameters, from glibc's malloc.h."""
MALLOPT = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1))
"""Settings that disable mmap and trimming, so the next step reuses pages that are already mapped.

M_MMAP_THRESHOLD does not work here: glibc refuses values above 32 MiB. M_ARENA_MAX is unchanged,
because one arena for forward and backward threads made a step 6 to 27 % slower.
"""
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
}


def find_library(name: str) -> Path | None:
    """Return the shared library of `jemalloc` or `tcmalloc`, or None if it is not installed."""
    for folder in _FOLDERS:
        for file in _FILES[name]:
            path = Path(folder) / file
            if path.exists():
                return path
    return None


def allocator_variables(allocator: str) -> dict[str, str]:
    """Return the variables that preload an allocator, or let a GPU's segments grow."""
    if allocator == "expandable":
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    library = find_library(allocator) if allocator in _FILES else None
    return {} if library is None else {"LD_PRELOAD": str(library)}


def enter_allocator(allocator: str, config: StepConfig) -> None:
    """Keep freed memory, if the allocator is glibc's with `mallopt`."""
    if allocator == "mallopt":
        keep_freed_memory()


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks instead of returning them; False without glibc."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in MALLOPT)


def pin(affinity: bool, config: StepConfig) -> None:
    """Pin the process to its first `threads` allowed cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    import psutil

    allowed = sorted(os.sched_getaffinity(0))
    psutil.Process().cpu_affinity(allowed[: config.threads or len(allowed)])


def enter_threads(threads: int, config: StepConfig) -> None:
    """Set the number of torch's threads."""
    import torch

    torch.set_num_threads(threads)


def enter_matmul_precision(precision: str, config: StepConfig) -> None:
    """Set the precision of torch's fp32 matrix products."""
    import torch

    torch.set_float32_matmul_precision(precision)


def matmul_library_variables(library: str) -> dict[str, str]:
    """Return the variables that choose hipBLASLt, or time every kernel with TunableOp.

    TunableOp's results lie in Ratchet's cache, so that each shape is tuned once. torch adds the
    device number to the file name. It discards the results if the version of torch, ROCm, rocBLAS
    or hipBLASLt has changed (torch.cuda.tunable).
    """
    if library == "hipblaslt":
        return {"TORCH_BLAS_PREFER_HIPBLASLT": "1"}
    from ratchet.judge.kernels.languages.cpp import cache_folder

    folder = cache_folder().parent
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": str(folder / "tunableop_results.csv"),
    }
