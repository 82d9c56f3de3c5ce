"""The parts of the machine that a worker must see: libraries, Python, the compiler, Ratchet.

Every isolation shows these to a candidate, read-only, and as little else as it can.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from ratchet import base
from ratchet.base import FOLDER, file_of
from ratchet.base.errors import CompilerMissing, JudgeError
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.keeper import Opened

# Ratchet's files in each sandbox: what its worker imports, and nothing else.
#
# They are found by reading the imports, without running them. A candidate can read and import
# whatever its sandbox holds, so no worker may come to import a reference, a tolerance or a check,
# or a part of the judge that decides (`tests/judge/sandbox/test_worker_modules.py` lists those).

CPP_WORKER: Final = "ratchet.judge.workers.candidate.cpp"
TORCH_WORKER: Final = "ratchet.judge.workers.candidate.with_torch"
ZYGOTE: Final = "ratchet.judge.workers.zygote"
CPP_ZYGOTE: Final = "ratchet.judge.workers.zygote_cpp"
LOADERS: Final = "ratchet.loaders"
"""The entry points of functions that sources call which the judge sends to a worker with torch:
`module:function`, for a model and for each way to run a kernel of a GPU that is not here."""
TABLES: Final = "data"
"""The folder of the tables that a package's modules read; it goes with them."""
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


def needs_torch(worker: str) -> bool:
    """Return False for the workers that need the standard library alone."""
    return worker not in (CPP_WORKER, CPP_ZYGOTE)


@functools.cache
def modules_of(worker: str) -> tuple[str, ...]:
    """Return the modules that a worker and what is sent to it import, with the packages above."""
    found: dict[str, None] = {}
    left = [worker]
    if needs_torch(worker):
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

    A module's compiled form goes with it if it is kept: a worker then starts faster. Raises
    JudgeError if the installed package says nothing of workers, as one from before a pull does.
    """
    data = entry_points(group=DATA)
    if not data:
        raise JudgeError(f"the installed torch-ratchet has no {DATA!r}: install it again")
    modules = modules_of(worker)
    for name in modules:
        path = file_of(name)
        assert path is not None
        yield path, _place(path)
        tables = path.parent / TABLES
        if path.name == "__init__.py" and tables.is_dir():
            yield tables, _place(tables)
        kept = Path(importlib.util.cache_from_source(str(path)))
        if kept.is_relative_to(FOLDER) and kept.is_file():
            yield kept, _place(kept)
    for one in data:
        home = file_of(one.module)
        if one.module in modules and home is not None:
            yield home.parent / one.name, _place(home.parent / one.name)


def _place(path: Path) -> str:
    return str(path.relative_to(FOLDER.parent))


SYSTEM_FOLDERS: Final = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/sbin",
    "/etc/alternatives",
    "/opt/rocm",
)
"""Folders that a worker may read, under every isolation."""
SYSTEM_FILES: Final = ("/etc/ld.so.cache",)
SYSTEM_FACTS: Final = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems"),
    *("/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
"""Facts that libraries read, opened for Landlock; under bubblewrap a worker has a /proc of its own.
A worker also sees its own folder in /proc, and no other's."""
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PROBE_TIMEOUT_S: Final = 10.0
BOOT: Final = "import sys; sys.path.insert(0, {folder!r}); from {module} import main; main()"


def code_folder() -> str:
    """Return the folder in which Python finds Ratchet."""
    return str(base.FOLDER.parent)


def python(with_torch: bool) -> list[str]:
    if with_torch:
        return [*fixed_layout(), sys.executable, "-P"]
    # Without site-packages: the worker of a compiled kernel only needs the standard library.
    return [os.path.realpath(sys.executable), "-I", "-S"]


def python_folders(with_torch: bool) -> list[str]:
    """Return the interpreter's folders that are not the system's."""
    folders = [sys.base_prefix, sys.base_exec_prefix]
    if with_torch:
        packages = ("site-packages", "dist-packages")
        inside = [entry for entry in sys.path if Path(entry).name in packages]
        folders += [sys.prefix, *inside]
    return [folder for folder in folders if folder not in ("/", "/usr")]


def compiler_folders() -> list[str]:
    """Return the compiler's installation if it is not the system's."""
    compiler = find_compiler().resolve()
    return [] if compiler.is_relative_to("/usr") else [str(compiler.parent.parent)]


def compiler_if_any() -> list[str]:
    """Return the compiler's folders if there is one: Triton compiles its launchers."""
    with contextlib.suppress(CompilerMissing):
        return compiler_folders()
    return []


def installed_in(folder: str) -> Path | None:
    """Return our package's path below a visible folder, which may be a link; None if outside."""
    installed, real = base.FOLDER.resolve(), Path(folder).resolve()
    if not installed.is_relative_to(real):
        return None
    return Path(folder) / installed.relative_to(real)


def opened(
    module: str,
    scratch: Path,
    *,
    folders: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> Opened:
    """Return what Landlock leaves open to the worker `module`, whose own folder is `scratch`."""
    files = [str(path) for path, _ in package_files(module)]
    system = () if accelerator is None else (*accelerator.system_folders, *accelerator.told)
    return Opened(
        read=(
            *(
                *SYSTEM_FOLDERS,
                *SYSTEM_FILES,
                *python_folders(needs_torch(module)),
                *folders,
                *files,
            ),
            *(*SYSTEM_FACTS, *system),
        ),
        listed=(code_folder(),),
        written=(str(scratch),),
        used=(*DEVICES, *(accelerator.used if accelerator is not None else ())),
        hidden=str(base.FOLDER.resolve()),
    )


@functools.cache
def closed_to_others() -> str | None:
    """Return the first folder that a worker needs and not every user may enter, or None."""
    needed = [*python_folders(with_torch=True), code_folder(), str(base.FOLDER)]
    for folder in map(Path, [*needed, *compiler_if_any()]):
        for above in reversed((folder, *folder.parents)):
            if not _is_open(above):
                return str(above)
    return None


def _is_open(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IXOTH)
    except OSError:
        return False


@functools.cache
def fixed_layout() -> tuple[str, ...]:
    """Return the command that runs another one without address randomisation.

    Short calls of the same torch differ by up to a tenth between two random layouts. Forks of one
    process share a layout, so a newly started candidate would win or lose by chance. Empty if
    setarch is missing or denied (as by Docker's default filter): then layouts are random.
    """
    program = shutil.which("setarch")
    if program is None or not works([program, "-R", "true"]):
        return ()
    return (program, "-R")


def works(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
