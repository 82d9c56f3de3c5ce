"""What torch.utils.cpp_extension builds in a candidate's process, and in the next ones finds built.

The first process tells what it has built as it loaded the kernel, before it has seen any input; the
others get that read-only and work on a copy. ninja goes by the times of change, so these are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

SEEN: Final = "/ratchet-extensions"
"""Where a sandbox has what the first process built, read-only."""
FOLDER: Final = "TORCH_EXTENSIONS_DIR"
LOCK: Final = "lock"
"""torch's own, of a build under way."""


def copy_own() -> None:
    """Copy what was built, where this sandbox has it; what cannot be read is built again."""
    own = os.environ.get(FOLDER)
    if own is not None and os.path.isdir(SEEN):
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(SEEN, own)


def packed() -> tuple[list[tuple[str, int, int]], int]:
    """Name, time of change (ns) and bytes of every file, and a descriptor of their contents."""
    own = Path(os.environ[FOLDER])
    descriptor = os.memfd_create("extensions", os.MFD_CLOEXEC)
    told = []
    for path in sorted(own.rglob("*")):
        if path.is_file() and path.name != LOCK:
            content = path.read_bytes()
            with open(descriptor, "ab", closefd=False) as file:
                file.write(content)
            name = path.relative_to(own).as_posix()
            told.append((name, path.stat().st_mtime_ns, len(content)))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return told, descriptor
