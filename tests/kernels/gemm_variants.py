"""Which variants of the GEMM-based kernels this machine can run; AMX by its emulation."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.library import registry

NEEDED = {
    "portable": set[str](),
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512_bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
    "amx": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
}
ISAS = tuple(NEEDED)


def require(isa: str) -> None:
    """Skip where the processor lacks what `isa` is compiled to."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if platform.system() == "Linux" else set()
    missing = NEEDED[isa] - flags
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")


def emulated(kernel: Kernel) -> Kernel:
    """The AMX variant in scalar code; any other one as it is."""
    if ("isa", "amx") not in kernel.schedule:
        return kernel
    return dataclasses.replace(kernel, schedule=(*kernel.schedule, ("amx_emulate", "1")))


@contextmanager
def activated(kernels: tuple[Kernel, ...], cache: Path) -> Iterator[None]:
    """Serve the ops with `kernels`, and with nothing afterwards."""
    try:
        for kernel in kernels:
            registry.activate(emulated(kernel), cpp.compile_kernel(emulated(kernel), cache=cache))
        registry.fallbacks.clear()
        yield
    finally:
        registry.deactivate()
