"""The parts of the machine that a worker must see: libraries, Python, the compiler, Ratchet.

Every isolation shows these to a candidate, read-only, and as little else as it can.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ratchet import base
from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.landlock import Opened
from ratchet.judge.sandbox.worker_modules import package_files

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
    with_torch: bool,
    folders: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> Opened:
    """Return what Landlock leaves open to the worker `module`, whose own folder is `scratch`."""
    files = [str(path) for path, _ in package_files(module)]
    system = () if accelerator is None else (*accelerator.system_folders, *accelerator.told)
    return Opened(
        read=(
            *(*SYSTEM_FOLDERS, *SYSTEM_FILES, *python_folders(with_torch), *folders, *files),
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
    ways = _ways([*needed, *compiler_if_any()])
    return next((str(folder) for folder in ways if not _is_open(folder)), None)


def _ways(folders: Sequence[str]) -> Iterator[Path]:
    for folder in map(Path, folders):
        yield from reversed((folder, *folder.parents))


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
    """Return True if a command succeeds in time."""
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
