"""Kernels as files that a process can load: compiled libraries, and sources in Triton. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ratchet.base import scratch
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.kernels.languages import cpp, python_file

DEVICES: Final[dict[Language, str]] = {"cpp": "cpu", "triton": "cuda"}
"""The kind of device that kernels of a language run on in a step."""


def build_kernel(kernel: Kernel) -> Path:
    """Return the file of a kernel in the cache: compiled, or its source in Triton.

    Raises CompilerMissing, or a KernelError for a source that does not compile and any language but
    these.
    """
    _check(kernel)
    if kernel.language == "cpp":
        return cpp.compile_kernel(kernel)
    path = cpp.cache_folder() / f"triton_{kernel.build_hash[:40]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("source", place=path.parent) as folder:
        written = folder / path.name
        written.write_text(kernel.source, encoding="utf-8")
        os.replace(written, path)
    return path


def load_entry(kernel: Kernel, path: Path) -> Callable[..., object]:
    """Return a kernel's entry from the file that `build_kernel` returned."""
    _check(kernel)
    if kernel.language == "cpp":
        return cpp.load(path, kernel.entry)
    return python_file.load(path, kernel.entry)


def _check(kernel: Kernel) -> None:
    if kernel.language not in DEVICES:
        raise KernelError(
            f"kernel {kernel.name!r} is written in {kernel.language}: only kernels in "
            f"{' and '.join(DEVICES)} can be activated"
        )
