"""The C++ sources that ship, made into kernels: our own headers are inlined. No torch."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from ratchet.errors import KernelError
from ratchet.kernels.kernel import Kernel

ISAS: Final = ("amx", "avx512_bf16", "avx512", "portable")
"""Every variant, best first."""

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE / "csrc", _HERE.parent / "languages")
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[^\n]*$', re.MULTILINE)
_PRAGMA_ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)


def make_kernels(
    name: str, file: str, entries: tuple[str, ...], isa: str, **schedule: str
) -> tuple[Kernel, ...]:
    """The kernels of `csrc/FILE` for `isa`, one for each entry; they share one compiled library."""
    if isa not in ISAS:
        raise KernelError(f"isa {isa!r} is not known: use one of {', '.join(ISAS)}")
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
    """The text of `csrc/FILE` with each header of our own inlined once, where first included."""
    return _inline(file, set())


def _inline(file: str, seen: set[str]) -> str:
    seen.add(file)
    text = _PRAGMA_ONCE.sub("", _read(file))

    def replace(match: re.Match[str]) -> str:
        header = match.group(1)
        return "" if header in seen else _inline(header, seen)

    return _INCLUDE.sub(replace, text)


def _read(file: str) -> str:
    for folder in _FOLDERS:
        path = folder / file
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise KernelError(f"source {file!r} is not in this installation: install ratchet again")
