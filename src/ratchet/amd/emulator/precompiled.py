"""HIP's headers, with torch's or without, precompiled once for each target.

They take nine tenths of a small program's compilation.

They hold nothing of a candidate's, and its sandbox can only read them.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import (
    OWN_HEADERS,
    PRECOMPILED,
    RUNTIME_SOURCES,
    SIDES,
    find_hip,
    precompile,
    shared_options,
)
from ratchet.base import scratch
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.languages.precompiled_headers import keep_few

FOLDERS: Final = {True: "torch-headers", False: "hip-headers"}
"""The cache's folders of headers with torch's and without."""
MOST_KEPT: Final = 6
"""Most sets of each kind in the cache, at 180 MB with torch's headers and 25 without; the oldest is
removed."""


def precompiled(target: str, *, with_torch: bool) -> Path | None:
    """Return the folder of a target's precompiled headers; None if they cannot be made here."""
    try:
        folder = cpp.cache_folder() / FOLDERS[with_torch] / _key(target, with_torch)
        if not _is_whole(folder):
            with scratch.locked(folder):  # another command that precompiles the same is waited for
                if not _is_whole(folder):
                    precompile(folder, ARCHITECTURES[target], with_torch=with_torch)
            keep_few(folder.parent, MOST_KEPT)
    except (OSError, KernelError):
        return None  # the program's own compilation says what is wrong
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / f"{side}.pch").exists() for side in SIDES)


def _key(target: str, with_torch: bool) -> str:
    tools, architecture = find_hip(), ARCHITECTURES[target]
    parts = shared_options(tools, architecture, with_torch=with_torch)
    parts += [version("torch"), tools.clang]
    parts += PRECOMPILED
    parts += [str(os.stat(os.path.realpath(tools.clang)).st_mtime_ns)]
    files = (*OWN_HEADERS.rglob("*"), *RUNTIME_SOURCES)
    parts += [one.read_text() for one in sorted(files) if one.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
