"""A CUDA or HIP program with a main function, ported and compiled to run with emulated kernels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from ratchet.amd.emulator.hip_build import build_program
from ratchet.amd.port.compile import (
    INCLUDED,
    build_lines,
    build_macros,
    by_last_name,
    header_folders,
    hip_texts,
    plain_texts,
)
from ratchet.amd.port.scan import CPP_SUFFIXES, HEADER_SUFFIXES, ScannedFile, scan
from ratchet.base.errors import KernelError, PortError
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure

SOURCES: Final = (".cu", ".hip", ".cpp", ".cc", ".cxx")
GPU_SOURCES: Final = (".cu", ".hip")
TIME_LIMIT_S: Final = 600.0


def sources_of(command: Sequence[str]) -> list[Path]:
    """Return the sources with which a command begins: `main.cu kernels.cu 10` names two."""
    found = [Path(one) for one in takewhile(lambda one: one.endswith(SOURCES), command)]
    return found if found and found[0].suffix in GPU_SOURCES else []


def compile_program(sources: Sequence[Path], target: str) -> Path:
    """Port and compile sources into one program; return the folder of what it became.

    Headers are found in the tree below the sources' common folder, or as far up as their includes
    go. Macros are tried that the nearest build gives. The compiler runs in a sandbox.

    Raises:
        PortError: a source cannot be read.
        KernelError: the first error of the compiler.
    """
    for one in sources:
        if not one.is_file():
            raise PortError(f"{one} is no file: name the sources of a program, then its arguments")
    root = Path(os.path.commonpath([one.absolute().parent for one in sources]))
    for _ in range(_levels(sources)):
        root = root.parent
    scanned = scan(root)
    texts = _texts(scanned)
    for folder in _above(root, texts):
        texts |= {
            f"{ABOVE}/{folder.name}/{name}": one for name, one in _texts(scan(folder)).items()
        }
    units = [one.absolute().relative_to(root).as_posix() for one in sources]
    by_end = by_last_name(texts)
    found = (header_folders(one, texts, by_end) for one in units if one in texts)
    folders = list(dict.fromkeys(itertools.chain(*found)))
    return _built(texts, units, target, folders, scanned)


def _texts(scanned: Sequence[ScannedFile]) -> dict[str, str]:
    """Return the texts of a tree as HIP, with all that a source may include."""
    found = {name: text.decode(errors="replace") for name, text in hip_texts(scanned, lined=True)}
    return found | plain_texts(scanned, (*HEADER_SUFFIXES, *CPP_SUFFIXES))


ABOVE: Final = "above"
MOST_ABOVE: Final = 5  # folders above a program in which headers are looked for


def _above(root: Path, texts: dict[str, str]) -> list[Path]:
    """Return folders beside those above a program that have headers which it lacks.

    Samples keep what they share in such a folder: `common/`, `include/`.
    """
    asked = {one for text in texts.values() for one in INCLUDED.findall(text)}
    here = {name.rpartition("/")[2] for name in texts}
    missing = {one for one in asked if one.rpartition("/")[2] not in here}
    found: dict[Path, None] = {}
    for above in list(root.parents)[:MOST_ABOVE]:
        for one in sorted(missing):
            for path in sorted(above.glob(f"*/{one}")):
                if not path.is_relative_to(root) and path.is_file():
                    found[path.parents[one.count("/")]] = None
    return list(found)


def _levels(sources: Sequence[Path]) -> int:
    """Return how many folders up the sources' includes go."""
    return max(
        (
            line.count("../")
            for one in sources
            for line in one.read_text(errors="replace").splitlines()
            if line.lstrip().startswith("#") and "include" in line
        ),
        default=0,
    )


def _built(
    texts: dict[str, str],
    units: Sequence[str],
    target: str,
    folders: Sequence[str],
    scanned: Sequence[ScannedFile],
) -> Path:
    first: KernelError | None = None
    for macros in ((), *build_macros(build_lines(scanned), units[0])):
        clock = Clock.of(TIME_LIMIT_S)
        try:
            return build_program(texts, units, target, clock, folders=folders, options=macros)
        except KernelError as error:
            first = first or error
        except ChildFailure as error:
            raise KernelError(f"the program does not compile: its compiler {error}") from error
    assert first is not None
    raise first
