"""Environment for a step's process: allocator, huge pages, threads, affinity, libraries."""

from __future__ import annotations

from pathlib import Path

from ratchet.kernels.languages.cpp import cache_folder
from ratchet.workloads.config import StepConfig

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


def environment(config: StepConfig) -> dict[str, str]:
    """Return the environment variables that a process needs at start to run `config`."""
    variables: dict[str, str] = {}
    if config.allocator in _FILES:
        library = find_library(config.allocator)
        if library is not None:
            variables["LD_PRELOAD"] = str(library)
    if config.allocator == "expandable":
        variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if config.huge_pages:
        variables["THP_MEM_ALLOC_ENABLE"] = "1"
    if config.threads is not None:
        variables["OMP_NUM_THREADS"] = str(config.threads)
    if config.affinity:
        variables |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    if config.matmul_library == "hipblaslt":
        variables["TORCH_BLAS_PREFER_HIPBLASLT"] = "1"
    if config.matmul_library == "tunableop":
        variables |= _tunableop()
    if config.aotriton_experimental:
        variables["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] = "1"
    return variables


def _tunableop() -> dict[str, str]:
    """Enable TunableOp with its results in Ratchet's cache, so that each shape is tuned once.

    torch adds the device number to the file name. It discards the results if the version of torch,
    ROCm, rocBLAS or hipBLASLt has changed (torch.cuda.tunable).
    """
    folder = cache_folder().parent
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": str(folder / "tunableop_results.csv"),
    }
