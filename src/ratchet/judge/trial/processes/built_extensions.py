"""C++ that a kernel in torch builds as it is loaded (`load_inline`): once for all its processes.

A candidate's first process builds it, and hands it over before it has seen any input. Its report is
not believed: names, numbers and sizes are bounded, and only the same candidate runs the files, in
the same sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.sandbox.packed_files import PackedFiles

USED: Final = "cpp_extension"
REMEDY: Final = (
    "load_inline and load take C++ for the cores here, and need ninja and a C++ compiler; "
    "or give the C++ source as a .cpp kernel"
)
MOST_FILES: Final = 256
DEEPEST: Final = 4
_PART: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.+-]{1,120}")


_OF_A_BUILD: Final = re.compile(
    r"building extension|[Nn]inja|[Cc]ompiler|CUDA_HOME|nvcc|g\+\+|\.so\b|fatal error|Python\.h"
)


class NoFiles(ValueError):
    """The answer is not a list of files."""


def uses_extensions(kernel: Kernel) -> bool:
    """Return True if a kernel's text names torch's module that builds extensions."""
    return kernel.language in WITH_TORCH and USED in kernel.source


def remedy_for(kernel: Kernel, reply: Mapping[str, object]) -> str:
    """Return the remedy if a kernel could not be loaded because its extension was not built."""
    error = reply.get("error")
    words = str(error.get("message")) if isinstance(error, dict) else ""
    return REMEDY if uses_extensions(kernel) and _OF_A_BUILD.search(words) else ""


def checked(told: object, descriptor: int) -> PackedFiles | None:
    """Return the reported files of a sealed descriptor; None if there are none.

    `told` is a list of name, time of change and size. Raises NoFiles if it is not.
    """
    files = _checked(told, os.fstat(descriptor).st_size)
    return PackedFiles(files=files, descriptor=descriptor) if files else None


def _checked(told: object, size: int) -> list[tuple[str, int, int]]:
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
    names = [one[0] for one in told]
    folders = {str(parent) for name in names for parent in Path(name).parents}
    if len(set(names)) < len(names) or folders & set(names):
        raise NoFiles("a name that stands twice")
    return [(name, changed_ns, count) for name, changed_ns, count in told]
