"""What a step's process must start with: allocator, huge pages, threads, affinity, libraries."""

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
    if config.matmul_library == "hipblaslt":
        variables["TORCH_BLAS_PREFER_HIPBLASLT"] = "1"
    if config.matmul_library == "tunableop":
        variables |= _tunableop()
    if config.aotriton_experimental:
        variables["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"] = "1"
    return variables


def _tunableop() -> dict[str, str]:
    """TunableOp with its results in Ratchet's cache, so that each shape is tuned once.

    torch puts the device's number into the file's name, and drops the results itself where its own
    version or that of ROCm, rocBLAS or hipBLASLt is another one (torch.cuda.tunable).
    """
    folder = cache_folder().parent
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": str(folder / "tunableop_results.csv"),
    }
