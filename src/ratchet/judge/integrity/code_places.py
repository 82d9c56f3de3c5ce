"""Find whose code a thread runs: from an address to a file, and from the file to its owner.

A path alone proves nothing, because a candidate can give a file any name. The thread's instructions
must also be those of the file as the judge reads it. So machine code that was copied, patched or
made at run time belongs to nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Owner = Literal["own", "run-time", "worker", "allowed", "library", "made"]
"""own: the library that the judge had compiled. run-time: libraries that every program of the
language may use. worker: the Python in which the kernel runs, with only the modules that a batch
needs. allowed: a library that the problem names. library: any other file. made: memory that became
code, or a file that the judge cannot read."""

RUNTIME: Final = re.compile(
    r"(libc|libm|libmvec|libpthread|libdl|librt|ld-linux.*|ld-musl.*|libgomp|libomp|libiomp5"
    r"|libstdc\+\+|libc\+\+|libc\+\+abi|libgcc_s|libatomic|libquadmath|libunwind)"
    r"([.-][\w.-]*)?\.so(\.[\d.]+)?"
)
WORKER: Final = re.compile(r"(libpython3[\w.]*|libffi)\.so(\.[\d.]+)?")
MODULES: Final = frozenset(
    {*("_ctypes", "_json", "_socket", "_struct", "array", "select", "time"), *("math", "cmath")}
)
"""Modules of the interpreter that count as the worker's although they lie in files of their own:
those that receive, run and answer a batch (Debian's Python has most of them built in), and the two
that give Python a sine. Any other module, such as `audioop` or `zlib`, is a library."""
BLAS: Final = re.compile(r"lib(scipy_)?(openblas|blas|cblas|mkl_|blis|atlas|f77blas|armpl)[\w.-]*")
LIBRARIES: Final = {"matmul": BLAS}
"""The files of a library that a problem allows by name."""
CODE_FOLDERS: Final = ("/usr/", "/lib/", "/lib64/", "/lib32/", "/opt/")
PACKAGES: Final = ("/site-packages/", "/dist-packages/")
KERNELS_OWN: Final = ("[vdso]", "[vsyscall]", "[uprobes]")
COMPARED_BYTES: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CodePlace:
    """A place in the code: its owner, and its name in the evidence."""

    owner: Owner
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """One executable line of /proc/PID/maps (proc(5))."""

    start: int
    end: int
    offset: int
    device: tuple[int, int]
    inode: int
    path: str


def read_mappings(pid: int) -> list[Mapping]:
    """Return the executable mappings of a process; raises OSError if they cannot be read."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return [_mapping(line) for line in file if "x" in line.split(maxsplit=2)[1]]


def _mapping(line: str) -> Mapping:
    fields = line.rstrip("\n").split(maxsplit=5)
    start, _, end = fields[0].partition("-")
    major, _, minor = fields[3].partition(":")
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        offset=int(fields[2], 16),
        device=(int(major, 16), int(minor, 16)),
        inode=int(fields[4]),
        path=fields[5] if len(fields) == 6 else "",
    )


class CodePlaces:
    """Finds the owner of an address. Close it: it keeps the files open that it compares with."""

    def __init__(
        self,
        library: int | None,
        *,
        allowed: Iterable[str] = (),
        folders: Sequence[str] = (),
        interpreter: Sequence[str] = (),
    ) -> None:
        """`library` is the candidate's sealed library, which stays the caller's.

        `allowed` are names of LIBRARIES. `folders` hold run-time libraries besides the system's.
        `interpreter` are packages that run the kernel, such as Triton's.
        """
        self._library = library
        self._identity: tuple[int, int, int] | None = None
        if library is not None:
            found = os.fstat(library)
            self._identity = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
        self._allowed = [LIBRARIES[name] for name in allowed if name in LIBRARIES]
        self._folders = (*CODE_FOLDERS, *(f"{folder}/" for folder in folders))
        bases = (sys.base_prefix, sys.base_exec_prefix)
        self._python = tuple(f"{path}/" for path in (*bases, *map(os.path.realpath, bases)))
        packages = [os.path.realpath(one) for one in sys.path if f"/{Path(one).name}/" in PACKAGES]
        self._interpreter = tuple(f"{one}/{name}/" for one in packages for name in interpreter)
        self._installed = (*self._folders, *self._python, *(f"{one}/" for one in packages))
        self._files: dict[str, int | None] = {}

    def __enter__(self) -> CodePlaces:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._files.values():
            if descriptor is not None:
                os.close(descriptor)
        self._files.clear()

    def place(self, pid: int, address: int, mappings: Sequence[Mapping]) -> CodePlace:
        """Return the place of a stopped thread's instruction."""
        for mapping in mappings:
            if mapping.start <= address < mapping.end:
                return self._in(pid, address, mapping)
        return CodePlace(owner="made", name="memory without code")

    def _in(self, pid: int, address: int, mapping: Mapping) -> CodePlace:
        if mapping.path in KERNELS_OWN:
            return CodePlace(owner="run-time", name=mapping.path)
        own = (*mapping.device, mapping.inode) == self._identity
        name = "its own code" if own else _shown(mapping.path)
        descriptor = self._library if own else self._file(mapping.path)
        if descriptor is None or not _same_code(pid, address, mapping, descriptor):
            words = f"code in {name} that is not the file's" if mapping.path else name
            return CodePlace(owner="made", name=words)
        return CodePlace(owner="own" if own else self._owner(mapping.path), name=name)

    def _owner(self, path: str) -> Owner:
        name = os.path.basename(path)
        if path.startswith(self._interpreter):
            return "worker"
        if any(pattern.fullmatch(name) for pattern in self._allowed):
            return "allowed" if path.startswith(self._installed) else "library"
        if any(folder in path for folder in PACKAGES):
            return "library"
        if not path.startswith((*self._folders, *self._python)):
            return "library"
        if RUNTIME.fullmatch(name):
            return "run-time"
        interpreter = path == os.path.realpath(sys.executable)
        module = "/lib-dynload/" in path and name.partition(".")[0] in MODULES
        if interpreter or module or WORKER.fullmatch(name):
            return "worker"
        return "library"

    def _file(self, path: str) -> int | None:
        """Return a descriptor of the file as the judge sees it, or None."""
        if path not in self._files:
            descriptor = None
            with contextlib.suppress(OSError):  # a name may be too long for any file
                if path.startswith("/") and Path(path).is_file():  # opening a pipe would wait
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._files[path] = descriptor
        return self._files[path]


def _same_code(pid: int, address: int, mapping: Mapping, descriptor: int) -> bool:
    """Return True if the instructions at an address are those of the file mapped there."""
    size = min(COMPARED_BYTES, mapping.end - address)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.pread(memory, size, address)
    finally:
        os.close(memory)
    return there == os.pread(descriptor, size, mapping.offset + address - mapping.start)


def _shown(path: str) -> str:
    """Return a file's name, made printable: a candidate may have chosen it."""
    if not path:
        return "memory that it made code of"
    words = os.path.basename(path) if path.startswith("/") else path
    return "".join(c if c.isprintable() else "?" for c in words)[:80]
