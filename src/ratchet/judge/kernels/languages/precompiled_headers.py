"""Precompiled standard headers for C++ sources.

A small kernel's compiler spends most of its time on `<vector>` and `<cmath>`. GCC reads them from a
precompiled header instead, which `-include` puts before the source's first line (GCC's manual,
"Using Precompiled Headers"). The header holds only the source's own leading `#include`s of standard
headers, in their order. So the same text compiles to the same code without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

from ratchet.base import scratch
from ratchet.base.errors import RatchetError
from ratchet.base.process import watchdog
from ratchet.judge.kernels.languages import cpp

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
        folder = cpp.cache_folder() / "headers"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return folder if folder.stat().st_mode & FOR_ALL == FOR_ALL else None
        except OSError:
            return None

    def folder_for(self, source: str) -> Path | None:
        """Return a folder with the precompiled headers that a source begins with, or None.

        It holds only the precompiled form of NAME, which `-include` takes.
        """
        names = leading_headers(source)
        if not names:
            return None
        try:
            compiler = cpp.find_compiler()
            key = cpp.headers_key(names, compiler)
            folder = (self._folder or cpp.cache_folder() / "headers") / key
            if (folder / f"{NAME}.gch").is_file():
                return folder
            self._asked[key] = self._asked.get(key, 0) + 1
            if key in self._failed or self._asked[key] < ENOUGH or not cpp.is_gcc(compiler):
                return None
            self._failed.add(key)
            _build(names, compiler, folder)
            self._failed.discard(key)
        except (OSError, RatchetError, subprocess.SubprocessError):
            return None  # compiling without them is only slower
        keep_few(folder.parent, MOST_KEPT)
        return folder


def leading_headers(source: str) -> tuple[str, ...]:
    """Return the standard headers that a source includes before anything else."""
    names: list[str] = []
    for line in _COMMENT.sub(_as_lines, source).splitlines():
        found = _INCLUDE.fullmatch(line)
        if found is not None and found[1] in KNOWN and not line.endswith("\\"):
            names.append(found[1])
        elif line.endswith("\\") or (line.strip() and not line.lstrip().startswith("//")):
            break
    return tuple(dict.fromkeys(names))


def _as_lines(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")


def _build(names: tuple[str, ...], compiler: Path, folder: Path) -> None:
    """Precompile into a new folder, then move it into place; another process may be first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("build", place=folder.parent) as place:
        made = place / "made"
        made.mkdir()
        header = made / NAME
        header.write_text("".join(f"#include <{one}>\n" for one in names), encoding="ascii")
        out = made / f"{NAME}.gch"
        command = [str(compiler), *cpp.FLAGS, "-x", "c++-header", str(header), "-o", str(out)]
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
