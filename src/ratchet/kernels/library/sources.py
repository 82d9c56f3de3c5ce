"""The shipped C++ sources as kernels, with Ratchet's headers inlined. Imports no torch."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.kernels.kernel import Kernel

ISAS: Final = ("amx", "avx512_bf16", "avx512", "avx2", "portable")
"""Every variant, best first."""

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE / "csrc", _HERE.parent / "languages")
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
_PRAGMA_ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)


def make_kernels(
    name: str, file: str, entries: tuple[str, ...], isa: str, **schedule: str
) -> tuple[Kernel, ...]:
    """Return the kernels of `csrc/FILE` for `isa`, one per entry; they share one library."""
    if isa not in ISAS:
        raise KernelError(f"unknown isa {isa!r}: use one of {', '.join(ISAS)}")
    parameters = (("isa", isa), *sorted(schedule.items()))
    source = self_contained(file)
    return tuple(
        Kernel(
            name=f"{name}:{entry}:{isa}",
            language="cpp",
            source=source,
            entry=entry,
            schedule=parameters,
        )
        for entry in entries
    )


@functools.cache
def self_contained(file: str) -> str:
    """Return the text of `csrc/FILE`, with Ratchet's headers inlined at their first include."""
    return inlined(_read(file), {file})


def inlined(text: str, seen: set[str] | None = None) -> str:
    """Return a text with Ratchet's headers inlined at their first include, but for those `seen`."""
    known = set() if seen is None else seen

    def replace(match: re.Match[str]) -> str:
        header = match.group(1)
        if header in known:
            return ""
        known.add(header)
        return inlined(_read(header), known)

    return _INCLUDE.sub(replace, text)


def _read(file: str) -> str:
    for folder in _FOLDERS:
        path = folder / file
        if path.is_file():
            return _PRAGMA_ONCE.sub("", path.read_text(encoding="utf-8"))
    raise KernelError(f"source {file!r} is missing from this installation: install ratchet again")
