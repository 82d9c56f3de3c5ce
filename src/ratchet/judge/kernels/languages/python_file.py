"""Kernels in Python: a source runs as a module in a file, where Triton and TorchScript look it up.

Triton compiles a kernel at its first call, for the device of its tensors.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from ratchet.base.errors import KernelError


def load(path: Path, entry: str) -> Callable[..., object]:
    """Run a source and return its function `entry`; a KernelError if there is none."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    found = getattr(module, entry, None)
    if not callable(found):
        kind = "class" if entry[:1].isupper() else "function"
        raise KernelError(f"the source defines no {kind} {entry!r}")
    return found  # type: ignore[no-any-return]


def load_source(source: str, entry: str, path: Path) -> Callable[..., object]:
    """Return the entry of a source, loaded from a file, where Triton looks up its kernels' text.

    Raises KernelError if the source defines no such function, and whatever the source raises.
    """
    path.write_text(source)
    return load(path, entry)
