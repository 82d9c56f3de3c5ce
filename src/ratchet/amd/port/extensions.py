"""The kernels of a scanned tree that a judge can call: extensions and Python files, patched.

An extension's sources become one text, its own headers in place: a kernel is one file to a judge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ratchet.amd.port.compile import is_clean
from ratchet.amd.port.files import CPP_SUFFIXES
from ratchet.amd.port.patch import edited
from ratchet.amd.port.scan import ScannedFile
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import bound_names, is_extension
from ratchet.judge.problems.card import ANSWER

SOURCES: Final = (".cu", ".cpp", ".cc", ".cxx")
INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"][^\n]*$', re.MULTILINE)
ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PortedKernel:
    """A kernel with the patch, and where it comes from."""

    file: str
    """The file that it is reported under."""
    kernel: Kernel
    sources: tuple[str, ...]
    """All files of the tree that it is made of."""

    def what_is_left(self, scanned: Iterable[ScannedFile]) -> str:
        """Return the first error that the patch leaves in its sources, or ""."""
        for one in scanned:
            if one.found.name in self.sources and not is_clean(one):
                found = next(e for e in one.findings if e.severity == "error" and not e.fixable)
                return f"{found.file}:{found.line}: {found.rule} ({found.detail})"
        return ""

    def warnings_left(self, scanned: Iterable[ScannedFile]) -> list[str]:
        """Return the warnings that the patch leaves in its sources, each with its place."""
        return [
            f"{found.file}:{found.line}: {found.rule} ({found.detail})"
            for one in scanned
            if one.found.name in self.sources
            for found in one.findings
            if found.severity == "warning" and not found.fixable
        ]


def ported_kernels(scanned: Sequence[ScannedFile]) -> list[PortedKernel]:
    """Return what a tree offers to callers: functions that extensions bind, and `ModelNew`s."""
    texts = {one.found.name: text for one in scanned if (text := _text(one))}
    found, taken = [], set[str]()
    for one in scanned:
        if one.found.kind != "python":
            continue
        name, text = one.found.name, edited(one).decode(errors="replace")
        if one.has_kernels and re.search(rf"^class {ANSWER}\b", text, re.MULTILINE):
            stem = PurePosixPath(name).stem
            kernel = Kernel(name=stem, language="torch", source=text, entry=ANSWER)
            found.append(PortedKernel(file=name, kernel=kernel, sources=(name,)))
        for sources in _built(text, name, texts):
            taken |= {*sources}
            found += _extension(sources, texts)
    for name, text in texts.items():
        if name not in taken and name.endswith(".cu") and is_extension(text):
            found += _extension([name], texts)
    return sorted(found, key=lambda one: (one.file, one.kernel.entry))


def _text(scanned: ScannedFile) -> str:
    """Return a C++ or CUDA file with the patch; "" for other files and those that are not read."""
    found = scanned.found
    if found.kind == "cuda":
        return edited(scanned).decode(errors="replace")
    plain = found.kind is None and not found.skipped and found.path.suffix in CPP_SUFFIXES
    return found.path.read_text(errors="replace") if plain else ""


def _built(text: str, file: str, texts: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the sources of each CUDAExtension of a build script, as files of the tree."""
    if "CUDAExtension" not in text:
        return
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    folder = PurePosixPath(file).parent
    here = f"{folder.as_posix()}/" if folder.parts else ""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("CUDAExtension"):
            words = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            named = [here + one for one in words if isinstance(one, str) and one.endswith(SOURCES)]
            all_here = [one for one in texts if one.startswith(here) and one.endswith(SOURCES)]
            sources = [one for one in named if one in texts] or all_here
            if sources:
                yield sources


def _extension(sources: Sequence[str], texts: Mapping[str, str]) -> Iterator[PortedKernel]:
    """Yield a kernel for each function that an extension binds."""
    text, files = merged(sources, texts)
    for entry in bound_names(text):
        defined = re.compile(rf"\b{entry}\w*\s*\(")
        gpu = (one for one in sources if one.endswith(".cu") and defined.search(texts[one]))
        kernel = Kernel(name=entry, language="hip", source=text, entry=entry)
        yield PortedKernel(file=next(gpu, sources[0]), kernel=kernel, sources=files)


def merged(sources: Sequence[str], texts: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return sources as one text, and the files in it: a header stands where it is first asked for.

    Lines keep their file's name and number for the compiler.
    """
    seen: dict[str, None] = {}

    def whole(name: str) -> str:
        seen[name] = None
        text = ONCE.sub("", texts[name])

        def included(match: re.Match[str]) -> str:
            header = _header(match[1], name, texts)
            if header is None:
                return match[0]
            line = text.count("\n", 0, match.start()) + 2
            return "" if header in seen else f'{whole(header)}\n#line {line} "{name}"'

        return f'#line 1 "{name}"\n{INCLUDE.sub(included, text)}'

    made = "\n".join(whole(one) for one in sources) + "\n"
    return made, tuple(seen)


def _header(path: str, asker: str, texts: Mapping[str, str]) -> str | None:
    """Return the tree's file that an include names: beside the asker, else the one it ends."""
    beside = (PurePosixPath(asker).parent / path).as_posix()
    if beside in texts:
        return beside
    ends = [one for one in texts if one == path or one.endswith(f"/{path.removeprefix('../')}")]
    return ends[0] if len(ends) == 1 else None
