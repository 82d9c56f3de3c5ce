"""CUDA or HIP programs with a main function, ported and compiled to run with emulated kernels."""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.compile.hip_compiler import whole_hip
from ratchet.amd.compile.process import ProfileProcess
from ratchet.amd.emulator.extension_build import PROGRAM
from ratchet.amd.emulator.hip_build import build_program
from ratchet.amd.emulator.hip_program import CALLS, NOT_HERE
from ratchet.amd.emulator.program import ProgramResult, read_result, settings_for
from ratchet.amd.emulator.program_worker import ProgramEnd, ProgramOrder
from ratchet.amd.port.compile import (
    INCLUDED,
    build_lines,
    build_macros,
    by_last_name,
    header_folders,
    hip_texts,
    plain_texts,
)
from ratchet.amd.port.scan import (
    CPP_SUFFIXES,
    HEADER_SUFFIXES,
    SKIPPED_FOLDERS,
    ScannedFile,
    kind_of,
    scan,
)
from ratchet.base.errors import KernelError, PortError
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure

SOURCES: Final = (".cu", ".hip", ".cpp", ".cc", ".cxx")
GPU_SOURCES: Final = (".cu", ".hip")
TIME_LIMIT_S: Final = 600.0


def sources_of(command: Sequence[str]) -> list[Path]:
    """Return the sources with which a command begins: `main.cu kernels.cu 10` names two."""
    found = [Path(one) for one in takewhile(lambda one: one.endswith(SOURCES), command)]
    return found


def compile_program(sources: Sequence[Path], target: str) -> Path:
    """Port and compile sources into one program; return the folder of what it became.

    Headers are found in the tree below the sources' common folder, or as far up as their includes
    go, and only what is included is read. Macros are tried that the nearest build gives. The
    compiler runs in a sandbox. Raises PortError (a source cannot be read); KernelError (the first
    error of the compiler, or what of HIP is not installed).
    """
    for one in sources:
        if not one.is_file():
            raise PortError(f"{one} is no file: name the sources of a program, then its arguments")
    root = Path(os.path.commonpath([one.absolute().parent for one in sources]))
    for _ in range(_levels(sources)):
        root = root.parent
    units = [one.absolute().relative_to(root).as_posix() for one in sources]
    scanned = scan(root, _reached(root, units))
    texts = _texts(scanned)
    for folder, headers in _above(root, texts).items():
        found = _texts(scan(folder, _reached(folder, headers)))
        texts |= {f"{ABOVE}/{folder.name}/{name}": one for name, one in found.items()}
    return _built(texts, units, target, scanned)


MOST_NAMES: Final = 50_000  # files below a program's folder among which its headers are


def _reached(root: Path, units: Sequence[str]) -> set[str]:
    """Return the names of sources, of what they include below the root, and of their builds.

    The folder of a program may be somebody's home: nothing else in it is read.
    """
    by_end = by_last_name(itertools.islice(_names(root), MOST_NAMES))
    seen, new = set(units), list(units)
    while new:
        try:
            text = (root / new.pop()).read_text(errors="replace")
        except OSError:
            continue
        for path in INCLUDED.findall(text):
            ends = path.lstrip("./")
            same = by_end.get(ends.rpartition("/")[2], ())
            found = {one for one in same if one == ends or one.endswith(f"/{ends}")} - seen
            seen |= found
            new += found
    folders = {parent for one in units for parent in (root / one).parents}
    builds = (one for folder in folders if folder.is_relative_to(root) for one in folder.iterdir())
    return seen | {
        one.relative_to(root).as_posix()
        for one in builds
        if one.is_file() and (kind_of(one) in ("cmake", "shell") or one.name == "setup.py")
    }


def _names(root: Path) -> Iterator[str]:
    """Yield the names of the files below a folder that may be included, the nearest first."""
    folders = [root]
    for folder in folders:  # grows
        try:
            found = sorted(os.scandir(folder), key=lambda one: one.name)
        except OSError:
            continue
        for one in found:
            if one.is_dir(follow_symlinks=False) and one.name not in SKIPPED_FOLDERS:
                folders.append(Path(one.path))
            elif one.name.endswith((*HEADER_SUFFIXES, *CPP_SUFFIXES, *GPU_SOURCES)):
                yield Path(one.path).relative_to(root).as_posix()


MAIN: Final = re.compile(r"^[ \t]*(?:int|void|auto)\s+main\s*\(", re.MULTILINE)
OF_GPU: Final = re.compile("__global__|<<<")
MOST_FILES, MOST_BYTES = 256, 16 << 20  # what a program of a tree finds in its folder


class TreePrograms:
    """The programs of a scanned tree: each source with a main and kernels, alone or with others."""

    def __init__(self, root: Path, scanned: Sequence[ScannedFile]) -> None:
        self._root, self._scanned = root, scanned
        self._texts = _texts(scanned)

    def units(self) -> Iterator[tuple[str, ...]]:
        """Yield the sources of each program, that with its main first.

        Sources beside the only main of a folder belong to it, and those whose names begin with a
        main's, as `sort_cpu.cpp` does beside `sort.cu`.
        """
        sources = {one: text for one, text in self._texts.items() if one.endswith(SOURCES)}
        mains = [one for one, text in sources.items() if MAIN.search(text)]
        for main in sorted(mains):
            folder, stem = main.rpartition("/")[0], main.rpartition(".")[0]
            beside = [one for one in sources if one.rpartition("/")[0] == folder]
            alone = sum(one in mains for one in beside) == 1
            others = (one for one in beside if one not in mains)
            found = (main, *(one for one in others if alone or one.startswith(f"{stem}_")))
            if any(OF_GPU.search(sources[one]) for one in found):
                yield found

    def run(
        self, units: Sequence[str], target: str, time_limit_s: float
    ) -> tuple[ProgramResult, str]:
        """Run a program in the judge's sandbox without arguments, beside copies of its files.

        Returns its result and the end of what it printed. Raises KernelError where it does not
        compile, calls a library that is not here, or has no end.
        """
        clock = Clock.of(time_limit_s)
        built = _built(self._texts, units, target, self._scanned)
        settings = settings_for(target, "")
        order = ProgramOrder(
            settings=settings,
            source=units[0].rpartition("/")[2],
            machine=Path(settings.library).read_bytes(),
            assemblies=[(built / f"{at}.s").read_text() for at in range(len(units))],
            host=(built / PROGRAM).read_bytes(),
            files=self._files(units[0]),
        )
        packed = base64.b64encode(msgspec.json.encode(order)).decode()
        try:
            with contextlib.closing(ProfileProcess(clock, worker=RUNNER)) as process:
                reply = process.ask({"do": "run", "order": packed})
            end = msgspec.convert(reply["end"], ProgramEnd)
        except ChildFailure as error:
            raise KernelError(f"the program {error}") from error
        except (msgspec.ValidationError, KeyError) as error:
            raise KernelError("the program's process answered nonsense") from error
        if (missing := CALLS.format(source=order.source)) in end.said and NOT_HERE in end.said:
            raise KernelError(f"it calls {end.said.partition(missing)[2].strip()}")
        result = read_result(
            end.records, target=target, command=(order.source,), exit_code=end.exit_code
        )
        return result, end.said

    def _files(self, main: str) -> dict[str, bytes]:
        """Return the files in the folder of a main and below that it may read."""
        folder, found, left = (self._root / main).parent, dict[str, bytes](), MOST_BYTES
        for path in itertools.islice(sorted(folder.rglob("*")), 8 * MOST_FILES):
            name = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in name.parts)
            if hidden or path.is_symlink() or not path.is_file() or path.suffix in SOURCES:
                continue
            left -= path.stat().st_size
            if left < 0 or len(found) == MOST_FILES:
                break
            found[name.as_posix()] = path.read_bytes()
        return found


RUNNER: Final = "ratchet.amd.emulator.program_worker"


def _texts(scanned: Sequence[ScannedFile]) -> dict[str, str]:
    """Return the texts of a tree as HIP, with all that a source may include."""
    found = {name: text.decode(errors="replace") for name, text in hip_texts(scanned, lined=True)}
    return found | plain_texts(scanned, (*HEADER_SUFFIXES, *CPP_SUFFIXES))


ABOVE: Final = "above"
MOST_ABOVE: Final = 5  # folders above a program in which headers are looked for


def _above(root: Path, texts: dict[str, str]) -> dict[Path, list[str]]:
    """Return folders beside those above a program that have headers which it lacks, and these.

    Samples keep what they share in such a folder: `common/`, `include/`.
    """
    asked = {one for text in texts.values() for one in INCLUDED.findall(text)}
    here = {name.rpartition("/")[2] for name in texts}
    missing = {one for one in asked if one.rpartition("/")[2] not in here}
    found: dict[Path, list[str]] = {}
    for above in list(root.parents)[:MOST_ABOVE]:
        for one in sorted(missing) if above != above.parent else ():  # not the system's folders
            for path in sorted(above.glob(f"*/{one}")):
                if not path.is_relative_to(root) and path.is_file():
                    found.setdefault(path.parents[one.count("/")], []).append(one)
    return found


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
    texts: Mapping[str, str], units: Sequence[str], target: str, scanned: Sequence[ScannedFile]
) -> Path:
    whole_hip()  # without the device libraries, names of the host's side would look undeclared
    by_end = by_last_name(texts)
    found = (header_folders(one, texts, by_end) for one in units if one in texts)
    folders = list(dict.fromkeys(itertools.chain(*found)))
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
