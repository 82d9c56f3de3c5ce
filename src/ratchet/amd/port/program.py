"""A CUDA or HIP program with a main function, ported and compiled to run with emulated kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from ratchet.amd.emulator.hip_build import build_program
from ratchet.amd.port.compile import (
    build_lines,
    build_macros,
    header_folders,
    hip_texts,
    nearest,
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
    texts = {name: text.decode(errors="replace") for name, text in hip_texts(scanned, lined=True)}
    texts |= plain_texts(scanned, (*HEADER_SUFFIXES, *CPP_SUFFIXES))
    units = [one.absolute().relative_to(root).as_posix() for one in sources]
    folders = nearest(sorted(header_folders(texts)), units[0])
    return _built(texts, units, target, folders, scanned)


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
