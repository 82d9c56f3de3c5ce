"""Which variants of the GEMM-based kernels this machine can run; AMX by its emulation."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.suites.shipped.linear import ENTRIES
from ratchet.judge.problems.suites.shipped.linear import ENTRY as LOSS

NEEDED = {
    "portable": set[str](),
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512_bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
    "amx": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
}
ISAS = tuple(NEEDED)
QUICK = cpp.FLAGS if os.environ.get("RATCHET_TEST") == "all" else ("-O1", *cpp.FLAGS[1:])
"""For code that no user's machine runs at its best: compiling it takes longer than its tests."""


@functools.cache
def flags() -> set[str]:
    """What the processor says that it can do (Linux)."""
    on_linux = platform.system() == "Linux"
    return set(Path("/proc/cpuinfo").read_text().split()) if on_linux else set()


def variant_of(isa: str, *others: object) -> Any:
    """A parameter; between the plainest code and the processor's widest, only of the long tier."""
    widest = next((one for one in ("avx512_bf16", "avx512", "avx2") if NEEDED[one] <= flags()), "")
    marks = () if isa in ("portable", "amx", widest) else (pytest.mark.thorough,)
    return pytest.param((isa, *others) if others else isa, marks=marks)


def require(isa: str) -> None:
    """Skip where the processor lacks what `isa` is compiled to."""
    missing = NEEDED[isa] - flags()
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")


def emulated(kernel: Kernel) -> Kernel:
    """The AMX variant in scalar code; any other one as it is."""
    if ("isa", "amx") not in kernel.schedule:
        return kernel
    return dataclasses.replace(kernel, schedule=(*kernel.schedule, ("amx_emulate", "1")))


def built(kernel: Kernel, cache: Path) -> Path:
    """The kernel's library: what is no best variant of a machine is compiled quickly."""
    isa = dict(kernel.schedule).get("isa")
    flags = QUICK if isa in ("amx", "portable", None) else cpp.FLAGS
    return cpp.compile_kernel(kernel, cache=cache, flags=flags)


def declines(kernel: Kernel, dtypes: Collection[str]) -> bool:
    """Whether a product refuses fp32 alone: its bf16 instructions would round it."""
    isa, products = dict(kernel.schedule).get("isa"), (*ENTRIES["linear"], LOSS)
    return isa in ("amx", "avx512_bf16") and kernel.entry in products and "bfloat16" not in dtypes


@contextmanager
def activated(kernels: tuple[Kernel, ...], cache: Path) -> Iterator[None]:
    """Serve the ops with `kernels`, and with nothing afterwards."""
    try:
        for kernel in map(emulated, kernels):
            registry.activate(kernel, built(kernel, cache))
        registry.fallbacks.clear()
        yield
    finally:
        registry.deactivate()
