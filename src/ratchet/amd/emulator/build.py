"""Compile the machine once, into the cache of compiled kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.emulator import source
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp

TIMEOUT_S: Final = 900.0
"""It takes 12 s on an idle core, and much longer on a busy one."""
FLAGS: Final = (
    "-O2",
    "-fvect-cost-model=dynamic",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-std=c++17",
)
"""A product and a sum must round twice: the GPU's instruction says when they round once."""


def compiled_machine(target: str) -> Path:
    """Return the machine's library for a target's waves; raises CompilerMissing."""
    text = source.written(ARCHITECTURES[target].wavefront_size)
    kernel = Kernel(name="emulator", language="cpp", source=text, entry="ratchet_emulate")
    return cpp.compile_kernel(kernel, flags=FLAGS, timeout_s=TIMEOUT_S)
