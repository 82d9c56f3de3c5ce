"""torch's headers, precompiled once for each target: they take most of an extension's compilation.

They hold nothing of a candidate's, and its sandbox can only read them.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.judge.static_profile.hip_compiler import (
    OWN_HEADERS,
    PRECOMPILED,
    RUNTIME_SOURCES,
    SIDES,
    find_hip,
    precompile_torch,
    shared_options,
)
from ratchet.judge.workers.candidate.architectures import ARCHITECTURES
from ratchet.kernels.languages import cpp
from ratchet.kernels.languages.precompiled_headers import keep_few

MOST_KEPT: Final = 6
"""Most sets in the cache, at 180 MB each; the oldest is removed."""


def torch_headers(target: str) -> Path | None:
    """Return the folder of a target's precompiled headers; None if they cannot be made here."""
    try:
        folder = cpp.cache_folder() / "torch-headers" / _key(target)
        if not all((folder / f"{side}.pch").exists() for side in SIDES):
            folder.mkdir(parents=True, exist_ok=True)
            precompile_torch(folder, ARCHITECTURES[target])
            keep_few(folder.parent, MOST_KEPT)
    except (OSError, KernelError):
        return None  # the extension's own compilation says what is wrong
    return folder


def _key(target: str) -> str:
    tools, architecture = find_hip(), ARCHITECTURES[target]
    parts = [*shared_options(tools, architecture, with_torch=True), version("torch"), tools.clang]
    parts += PRECOMPILED
    parts += [str(os.stat(os.path.realpath(tools.clang)).st_mtime_ns)]
    files = (*OWN_HEADERS.rglob("*"), *RUNTIME_SOURCES)
    parts += [one.read_text() for one in sorted(files) if one.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
