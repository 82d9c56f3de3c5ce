"""The `cpp` language: one self-contained source, compiled by the system's compiler. No torch.

A compiled library is cached under the hash of its source and schedule, the compiler and the CPU,
with a digest of the library file. A file that does not match its digest is compiled again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final, cast

from ratchet.base import scratch
from ratchet.base.errors import CompilerMissing, KernelError, RatchetError
from ratchet.base.files import cache_folder
from ratchet.base.process import watchdog
from ratchet.judge.abi import Entry
from ratchet.judge.kernels.kernel import Kernel

FLAGS: Final = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-std=c++17",
)
HEADERS: Final = Path(__file__).parent  # Folder of `ratchet_abi.h`, which a source may include
COMPILE_TIMEOUT_S: Final = 120.0
_COMPILERS: Final = ("g++", "clang++", "c++")
_MACRO_WORD: Final = re.compile(r"[A-Za-z0-9_]+")


def find_compiler() -> Path:
    """Return the compiler: RATCHET_CXX, CXX, g++, clang++ or c++; else raise CompilerMissing."""
    for variable in ("RATCHET_CXX", "CXX"):
        if asked := os.environ.get(variable, "").strip():
            if found := shutil.which(asked):
                return Path(found)
            raise CompilerMissing(
                f"{variable}={asked} is no program on this machine: correct or unset {variable}"
            )
    for name in _COMPILERS:
        if found := shutil.which(name):
            return Path(found)
    raise CompilerMissing(
        "no C++ compiler found (looked for g++, clang++, c++): install one, for example the "
        "package g++, or set RATCHET_CXX to its path"
    )


def macros(kernel: Kernel) -> tuple[str, ...]:
    """Return a schedule's -D options: ("isa", "amx") is -DRATCHET_ISA_AMX, others KEY=VALUE."""
    options = []
    for key, value in kernel.schedule:
        if not (_MACRO_WORD.fullmatch(key) and _MACRO_WORD.fullmatch(value)):
            raise KernelError(
                f"schedule ({key!r}, {value!r}) of {kernel.name!r} cannot be a macro: "
                "use letters, digits and underscores"
            )
        if key == "isa":
            options.append(f"-DRATCHET_ISA_{value.upper()}")
        else:
            options.append(f"-DRATCHET_{key.upper()}={value}")
    return tuple(options)


def compile_kernel(
    kernel: Kernel,
    *,
    cache: Path | None = None,
    included: Path | None = None,
    flags: tuple[str, ...] = FLAGS,
    limit_s: float = COMPILE_TIMEOUT_S,
) -> Path:
    """Compile `kernel` to a shared library, or find it in the cache; return the library's path.

    `included` is a precompiled header with the source's first lines (`precompiled_headers`). Raises
    CompilerMissing, or a KernelError with the compiler's first error.
    """
    if kernel.language != "cpp":
        raise KernelError(
            f"kernel {kernel.name!r} is written in {kernel.language}, not cpp: "
            "compile it with its own language"
        )
    compiler = find_compiler()
    options = (*flags, *macros(kernel))
    folder = cache if cache is not None else cache_folder("kernels")
    header = (HEADERS / "ratchet_abi.h").read_text(encoding="utf-8")
    key = cache_key(compiler, kernel.build_hash, *options, header)
    target = folder / f"{key}.so"
    if not _is_intact(target):
        before = ("-include", str(included)) if included is not None else ()
        _build(kernel, compiler, (*options, *before), target, limit_s)
    return target


def load(path: Path, entry: str) -> Entry:
    """Return the C function `entry` of a compiled library, to be called with packed bytes."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"{path.name} cannot be loaded ({error}): compile it again") from error
    try:
        function = getattr(library, entry)
    except AttributeError as error:
        raise KernelError(
            f'{path.name} has no entry {entry!r}: declare it as extern "C" int64_t {entry}(...)'
        ) from error
    function.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)
    function.restype = ctypes.c_int64
    return cast(Entry, function)


def cache_key(compiler: Path, *parts: str) -> str:
    """Return a name for what a compiler makes of some texts on this CPU."""
    every = (_compiler_identity(compiler), _cpu_identity(), *parts)
    return hashlib.sha256("\0".join(every).encode()).hexdigest()[:40]


def is_gcc(compiler: Path) -> bool:
    words = _compiler_identity(compiler).partition("\n")[2]
    return "clang" not in words and ("g++" in words or "GCC" in words)


@functools.cache
def _identity_of(compiler: str, _modified_ns: int) -> str:
    answer = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    return f"{compiler}\n{answer.stdout.splitlines()[:1]}"


def _compiler_identity(compiler: Path) -> str:
    return _identity_of(str(compiler), compiler.stat().st_mtime_ns)


@functools.cache
def _cpu_identity() -> str:
    """Return the CPU's model and features: -march=native makes the code depend on them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.split("\n\n", 1)[0]
    kept = ("model name", "cpu family", "model", "stepping", "flags", "Features")
    return "\n".join(line for line in first.splitlines() if line.split("\t", 1)[0] in kept)


def _is_intact(target: Path) -> bool:
    try:
        expected = target.with_suffix(".sha256").read_text(encoding="ascii").strip()
        return hashlib.sha256(target.read_bytes()).hexdigest() == expected
    except (OSError, UnicodeDecodeError):
        return False


def _build(
    kernel: Kernel, compiler: Path, options: tuple[str, ...], target: Path, limit_s: float
) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch.folder("build", place=target.parent) as folder:
            source = folder / "kernel.cpp"
            source.write_text(kernel.source, encoding="utf-8")
            library = folder / "kernel.so"
            command = [str(compiler), *options, f"-I{HEADERS}", "-o", str(library), str(source)]
            _run_compiler(kernel, command, limit_s)
            _keep(library, target)
    except OSError as error:
        raise KernelError(
            f"cannot write compiled kernels under {target.parent} ({error.strerror}): "
            "free the disk or set RATCHET_CACHE to a folder that can be written"
        ) from error


def _keep(library: Path, target: Path) -> None:
    """Move library and digest into the cache; a reader sees the old pair or a mismatch."""
    digest = library.with_suffix(".sha256")
    digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest(), encoding="ascii")
    os.replace(library, target)
    os.replace(digest, target.with_suffix(".sha256"))


def _run_compiler(kernel: Kernel, command: list[str], limit_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=watchdog.environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise KernelError(
            f"compiling {kernel.name!r} took over {limit_s:.0f} s: simplify its source"
        ) from error
    if done.returncode != 0:
        raise KernelError(
            f"{kernel.name!r} does not compile: {_first_error(done.stderr)}; correct its source"
        )


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    if not lines:
        return "the compiler printed no error"
    return re.sub(r"^.*?kernel\.cpp:", "line ", lines[0])


# Precompiled standard headers for C++ sources.
#
# A small kernel's compiler spends most of its time on `<vector>` and `<cmath>`. GCC reads them
# from a precompiled header instead, which `-include` puts before the source's first line (GCC's
# manual, "Using Precompiled Headers"). The header holds only the source's own leading `#include`s
# of standard headers, in their order. So the same text compiles to the same code without it.

NAME: Final = "leading.hpp"
ENOUGH: Final = 2
"""Number of requests after which precompiling the same headers is worth half a second."""
MOST_KEPT: Final = 16
"""Most sets of headers in the cache, at 10 to 60 MB each; the oldest is removed."""
BUILD_TIMEOUT_S: Final = 60.0
KNOWN: Final = frozenset(
    (
        *("algorithm", "array", "atomic", "bitset", "cassert", "cctype", "cerrno", "cfenv"),
        *("cfloat", "chrono", "cinttypes", "climits", "cmath", "complex", "cstddef", "cstdint"),
        *("cstdio", "cstdlib", "cstring", "functional", "initializer_list", "limits", "memory"),
        *("mutex", "new", "numeric", "string", "string_view", "thread", "tuple", "type_traits"),
        *("utility", "vector", "assert.h", "float.h", "inttypes.h", "limits.h", "math.h"),
        *("stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "immintrin.h", "omp.h"),
    )
)
FOR_ALL: Final = stat.S_IROTH | stat.S_IXOTH
_INCLUDE: Final = re.compile(r"\s*#\s*include\s*<([^<>]+)>\s*(//.*)?")
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)


class PrecompiledHeaders:
    """One user's precompiled headers, shared by processes with the same cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """Use `folder` as the cache; the default is next to the compiled kernels."""
        self._folder = folder
        self._asked: dict[str, int] = {}
        self._failed: set[str] = set()

    @staticmethod
    def shared_folder() -> Path | None:
        """Return the default cache, made now; None where it cannot be made, or only read by its
        owner: a sandbox that is to see all of it runs as another user.
        """
        folder = cache_folder("kernels") / "headers"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return folder if folder.stat().st_mode & FOR_ALL == FOR_ALL else None
        except OSError:
            return None

    def folder_for(self, source: str) -> Path | None:
        """Return a folder with the precompiled headers that a source begins with, or None."""
        names = leading_headers(source)
        if not names:
            return None
        try:
            compiler = find_compiler()
            key = cache_key(compiler, *FLAGS, *names)
            folder = (self._folder or cache_folder("kernels") / "headers") / key
            if (folder / f"{NAME}.gch").is_file():
                return folder
            self._asked[key] = self._asked.get(key, 0) + 1
            if key in self._failed or self._asked[key] < ENOUGH or not is_gcc(compiler):
                return None
            self._failed.add(key)
            _precompile(names, compiler, folder)
            self._failed.discard(key)
        except (OSError, RatchetError, subprocess.SubprocessError):
            return None  # compiling without them is only slower
        keep_few(folder.parent, MOST_KEPT)
        return folder


def leading_headers(source: str) -> tuple[str, ...]:
    """Return the standard headers that a source includes before anything else."""
    names: list[str] = []
    for line in _COMMENT.sub(lambda one: "\n" * one[0].count("\n"), source).splitlines():
        found = _INCLUDE.fullmatch(line)
        if found is not None and found[1] in KNOWN and not line.endswith("\\"):
            names.append(found[1])
        elif line.endswith("\\") or (line.strip() and not line.lstrip().startswith("//")):
            break
    return tuple(dict.fromkeys(names))


def _precompile(names: tuple[str, ...], compiler: Path, folder: Path) -> None:
    """Precompile into a new folder, then move it into place; another process may be first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("build", place=folder.parent) as place:
        made = place / "made"
        made.mkdir()
        header = made / NAME
        header.write_text("".join(f"#include <{one}>\n" for one in names), encoding="ascii")
        out = made / f"{NAME}.gch"
        command = [str(compiler), *FLAGS, "-x", "c++-header", str(header), "-o", str(out)]
        subprocess.run(
            command,
            check=True,
            timeout=BUILD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=watchdog.environment(),
        )
        with contextlib.suppress(FileExistsError):
            os.rename(made, folder)


def keep_few(parent: Path, most: int) -> None:
    """Remove the oldest sets beyond `most`."""
    sets = sorted(
        (one for one in parent.iterdir() if not one.name.startswith(scratch.PREFIX)),
        key=lambda one: one.stat().st_mtime_ns,
    )
    for old in sets[:-most]:
        shutil.rmtree(old, ignore_errors=True)
