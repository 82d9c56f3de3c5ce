"""C++ that a kernel in torch builds as it is loaded (`load_inline`): once for all its processes.

A candidate's first process builds, and is asked what it has built before it has seen any input.
Its word is not believed: names, numbers and sizes are bounded, and what it wrote is run by no other
than the same candidate, in the same sandbox.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from ratchet.judge import isolation
from ratchet.judge.candidate_languages import WITH_TORCH
from ratchet.kernels.kernel import Kernel

USED: Final = "cpp_extension"
REMEDY: Final = (
    "load_inline and load take C++ for the cores here, and need ninja and a C++ compiler; "
    "or give the C++ source as a .cpp kernel"
)
MOST_FILES: Final = 256
DEEPEST: Final = 4
_PART: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.+-]{1,120}")


class NoFiles(ValueError):
    """What was told is no list of files."""


def uses_extensions(kernel: Kernel) -> bool:
    """Whether a kernel's text names torch's module that builds extensions."""
    return kernel.language in WITH_TORCH and USED in kernel.source


def keep(told: Any, packed: int) -> Path | None:
    """A new folder with the files of a sealed descriptor, for others to read; None without any.

    `told` is a list of name, time of change and size. Raises NoFiles where it is not.
    """
    files = _checked(told, os.fstat(packed).st_size)
    if not files:
        return None
    folder = isolation.private_folder(None)
    try:
        offset = 0
        for name, changed_ns, size in files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                while size > 0:
                    chunk = os.pread(packed, min(size, 1 << 20), offset)
                    file.write(chunk)
                    offset, size = offset + len(chunk), size - len(chunk)
            os.utime(path, ns=(changed_ns, changed_ns))
            path.chmod(0o644)
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoFiles(f"its files cannot be kept: {error.strerror}") from error
    return folder


def _checked(told: Any, size: int) -> list[tuple[str, int, int]]:
    if not isinstance(told, list) or len(told) > MOST_FILES:
        raise NoFiles("no list of files")
    for one in told:
        if not (isinstance(one, list) and [type(part) for part in one] == [str, int, int]):
            raise NoFiles("no name, time and size")
        parts = one[0].split("/")
        if len(parts) > DEEPEST or not all(_PART.fullmatch(part) for part in parts):
            raise NoFiles("a name that no build gives")
        if not (0 <= one[1] < 1 << 62 and 0 <= one[2] <= size):
            raise NoFiles("a time or size out of bounds")
    if sum(one[2] for one in told) != size:
        raise NoFiles("sizes that do not add up")
    return [(name, changed_ns, count) for name, changed_ns, count in told]
