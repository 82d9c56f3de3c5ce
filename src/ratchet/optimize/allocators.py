"""What a step's process must start with: its allocator, huge pages, threads and affinity."""

from __future__ import annotations

from pathlib import Path

from ratchet.workloads.config import StepConfig

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
}


def find_library(name: str) -> Path | None:
    """The shared library of `jemalloc` or `tcmalloc`, or None where it is not installed."""
    for folder in _FOLDERS:
        for file in _FILES[name]:
            path = Path(folder) / file
            if path.exists():
                return path
    return None


def environment(config: StepConfig) -> dict[str, str]:
    """The environment variables that a process must start with to run `config`."""
    variables: dict[str, str] = {}
    if config.allocator in _FILES:
        library = find_library(config.allocator)
        if library is not None:
            variables["LD_PRELOAD"] = str(library)
    if config.huge_pages:
        variables["THP_MEM_ALLOC_ENABLE"] = "1"
    if config.threads is not None:
        variables["OMP_NUM_THREADS"] = str(config.threads)
    if config.affinity:
        variables |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    return variables
