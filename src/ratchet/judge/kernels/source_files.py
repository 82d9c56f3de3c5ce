"""Files beside a kernel that its source needs: headers, and sources that `load` names.

A kernel is one text. Such files follow it as comments, so its own lines keep their numbers:

    // ratchet: place csrc
    // ratchet: file include/rows.cuh
    // |the first line of that file

`place` is the folder of the kernel's own file. All names count from the same root.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from ratchet.base.errors import KernelError

SUFFIXES: Final = (
    *(".cu", ".cuh", ".hip", ".cpp", ".cc", ".cxx", ".c"),
    *(".h", ".hpp", ".hh", ".hxx", ".inl", ".inc"),
)
"""Endings of sources and headers."""
MOST_FILES: Final = 128
MOST_BYTES: Final = 2 << 20
MOST_SEEN: Final = 4000
HIGHEST: Final = 3  # Folders, from the kernel's own upwards, below which a header may lie
INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^<>"\n]+)[>"]', re.MULTILINE)
_NAME: Final = re.compile(r"(?!\.{1,2}(?:/|$))[\w.+ -]+(?:/(?!\.{1,2}(?:/|$))[\w.+ -]+)*")
_BEGIN: Final = re.compile(r"^(//|#) ratchet: place (.*)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CarriedFiles:
    place: str = ""  # The folder of the kernel's own file, from the root
    texts: dict[str, str] = field(default_factory=dict)
    """Each file's text by its name from the root."""

    def write(self, root: Path) -> Path:
        """Write the files below a folder, and return the folder of the kernel's own file."""
        for name, text in self.texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        home = root / self.place
        home.mkdir(parents=True, exist_ok=True)
        return home

    def folders(self) -> list[str]:
        """Return the folders that hold files, the kernel's own first."""
        return [self.place, *sorted({os.path.dirname(one) for one in self.texts} - {self.place})]

    def read(self, root: Path) -> CarriedFiles:
        """Return the files as they are below a folder now."""
        texts = {name: (root / name).read_bytes().decode(errors="replace") for name in self.texts}
        return CarriedFiles(self.place, texts)


def with_files(source: str, files: CarriedFiles, comment: str) -> str:
    """Return a source with files behind it; `comment` begins a comment of its language."""
    if not files.texts:
        return source
    lines = [f"{comment} ratchet: place {files.place or '.'}"]
    for name, text in files.texts.items():
        lines.append(f"{comment} ratchet: file {name}")
        lines += [f"{comment} |{line}" for line in text.split("\n")]
    return source + "\n" * (not source.endswith("\n")) + "\n".join(lines) + "\n"


def split_files(source: str) -> tuple[str, CarriedFiles]:
    """Return a source without the files behind it, and these; raises KernelError for nonsense."""
    found = _BEGIN.search(source)
    if found is None:
        return source, CarriedFiles()
    comment, place = found[1], found[2].removeprefix(".")
    texts: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in source[found.end() :].removesuffix("\n").split("\n"):
        if line.startswith(f"{comment} |") and current is not None:
            current.append(line[len(comment) + 2 :])
        elif line.startswith(f"{comment} ratchet: file "):
            current = texts.setdefault(line[len(comment) + 15 :], [])
        else:
            raise KernelError(f"a line between a source's carried files is none: {line!r:.80}")
    if any(_NAME.fullmatch(one) is None for one in (*texts, *([place] if place else []))):
        raise KernelError("a carried file's name leaves its folder")
    return source[: found.start()], CarriedFiles(
        place, {name: "\n".join(lines) for name, lines in texts.items()}
    )


def files_beside(path: Path, source: str) -> CarriedFiles:
    """Return the files that a kernel's file includes or names, and what these include.

    They lie beside the file that includes them, or below the kernel's folder, or by `..` above it.
    Raises KernelError if they are too many or too large.
    """
    path = path.resolve()
    search = _FileSearch(path.parent)
    first = search.named(source) if path.suffix == ".py" else search.included(path, source)
    waiting, found = list(first), dict[Path, str]()
    while waiting:
        one = waiting.pop()
        if one in found or one == path:
            continue
        found[one] = one.read_bytes().decode(errors="replace")
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_BYTES:
            raise KernelError(
                f"{str(path)!r} includes more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB "
                "beside it: give what its kernel needs"
            )
        waiting += search.included(one, found[one])
    if not found:
        return CarriedFiles()
    root = Path(os.path.commonpath([path.parent, *(one.parent for one in found)]))
    place = path.parent.relative_to(root).as_posix()
    texts = {one.relative_to(root).as_posix(): text for one, text in sorted(found.items())}
    if bad := next((one for one in texts if _NAME.fullmatch(one) is None), None):
        raise KernelError(f"the name of {bad!r:.80} cannot be kept: use letters, digits, . _ + -")
    return CarriedFiles("" if place == "." else place, texts)


class _FileSearch:
    """Finds files from the folder of a kernel's file."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._top = [home, *home.parents][:HIGHEST][-1]

    def included(self, path: Path, text: str) -> Iterator[Path]:
        for quote, name in INCLUDE.findall(text):
            for folder in (path.parent, self._home):
                one = Path(os.path.normpath(folder / name)).resolve()
                if one.suffix in SUFFIXES and one.is_relative_to(self._top) and one.is_file():
                    yield one
                    break
            else:
                if quote == '"' and (below := self._below(name)) is not None:
                    yield below

    def named(self, source: str) -> Iterator[Path]:
        """Yield the sources that a Python text names, and headers that its strings include."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.strip().lstrip("/")
                if "\n" in name:
                    yield from self.included(self._home / "string", name)
                if "\n" in name or not name.endswith(SUFFIXES) or len(name) > 200:
                    continue
                direct = (self._home / name).resolve()
                if direct.is_relative_to(self._home) and direct.is_file():
                    yield direct
                elif (one := self._below(name)) is not None:
                    yield one

    def _below(self, name: str) -> Path | None:
        """Return the file below the kernel's folder whose path ends in a name, the nearest one."""
        parts = PurePosixPath(name).parts
        fits = (one for one in self._sources if one.parts[-len(parts) :] == parts)
        return min(fits, key=lambda one: (len(one.parts), str(one)), default=None)

    @cached_property
    def _sources(self) -> list[Path]:
        """All sources and headers below the folder; of a large tree, those seen first."""
        found: list[Path] = []
        seen = 0
        for folder, folders, names in os.walk(self._home):
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            seen += len(folders) + len(names)
            paths = (Path(folder) / name for name in names if name.endswith(SUFFIXES))
            found += [one for one in paths if not one.is_symlink()]
            if seen > MOST_SEEN:
                break
        return found


# A source in Python runs as a module in a file, where Triton and TorchScript look it up. Triton
# compiles a kernel at its first call, for the device of its tensors.


def load(path: Path, entry: str) -> Callable[..., object]:
    """Run a source and return its function `entry`; a KernelError if there is none."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    found = getattr(module, entry, None)
    if not callable(found):
        kind = "class" if entry[:1].isupper() else "function"
        raise KernelError(f"the source defines no {kind} {entry!r}")
    return found  # type: ignore[no-any-return]


def load_source(source: str, entry: str, path: Path) -> Callable[..., object]:
    """Return the entry of a source, loaded from a file, where Triton looks up its kernels' text."""
    path.write_text(source)
    return load(path, entry)
