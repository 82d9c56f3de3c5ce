"""Ratchet's files in each sandbox: what its worker imports, and nothing else.

They are found by reading the imports, without running them. A candidate can read and import
whatever its sandbox holds, so no worker may come to import a reference, a tolerance or a check, or
a part of the judge that decides (`tests/judge/sandbox/test_worker_modules.py` lists those).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from ratchet.base import FOLDER, file_of

CPP_WORKER: Final = "ratchet.judge.workers.candidate.cpp"
PROFILE_WORKER: Final = "ratchet.amd.compile.worker"
TORCH_WORKER: Final = "ratchet.judge.workers.candidate.with_torch"
ZYGOTE: Final = "ratchet.judge.workers.zygote"
CPP_ZYGOTE: Final = "ratchet.judge.workers.zygote_cpp"
LOADERS: Final = "ratchet.loaders"
"""The entry points of functions that sources call which the judge sends to a worker with torch:
`module:function`, for a model and for each way to run a kernel of a GPU that is not here."""
DATA: Final = "ratchet.worker_data"
"""The entry points of files and folders that a worker reads: `module:path` beside that module."""
_TYPES_ALONE = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
_IMPORT = re.compile(
    r"^([ \t]*)(?:from (ratchet[\w.]*) import (\([^)]*\)|.*)|import (ratchet[\w.]*))", re.MULTILINE
)


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules of Ratchet's that a file imports anywhere, for types alone excepted.

    What functions of a package's own file import is not followed: it is for the package's callers.
    """
    for found in _IMPORT.finditer(_TYPES_ALONE.sub("", path.read_text("utf-8"))):
        indent, home, names, whole = found.groups()
        if indent and path.name == "__init__.py":
            continue
        yield whole or home
        for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names or "")):
            yield f"{home}.{name}"


@functools.cache
def modules_of(worker: str) -> tuple[str, ...]:
    """Return the modules that a worker and what is sent to it import, with the packages above."""
    found: dict[str, None] = {}
    left = [worker]
    if worker not in (CPP_WORKER, CPP_ZYGOTE):
        left += [one.module for one in entry_points(group=LOADERS)]
    while left:
        name = left.pop()
        if name in found or (path := file_of(name)) is None:
            continue
        found[name] = None
        left += [*_imports(path), name.rpartition(".")[0]]
    return tuple(found)


def package_files(worker: str) -> Iterator[tuple[Path, str]]:
    """Yield each file or folder in a sandbox, and its place below the folder of the code.

    A module's compiled form goes with it if it is kept: a worker then starts faster.
    """
    modules = modules_of(worker)
    for name in modules:
        path = file_of(name)
        assert path is not None
        yield path, _place(path)
        kept = Path(importlib.util.cache_from_source(str(path)))
        if kept.is_relative_to(FOLDER) and kept.is_file():
            yield kept, _place(kept)
    for one in entry_points(group=DATA):
        home = file_of(one.module)
        if one.module in modules and home is not None:
            yield home.parent / one.name, _place(home.parent / one.name)


def _place(path: Path) -> str:
    return str(path.relative_to(FOLDER.parent))
