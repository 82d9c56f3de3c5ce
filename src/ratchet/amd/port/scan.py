"""Read a tree and collect what its files' rules find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ratchet.amd.port.cuda_tree import CudaTree
from ratchet.amd.port.files import HEADER_SUFFIXES, FoundFile, find_files
from ratchet.amd.port.finding import ORDER, PortFinding
from ratchet.amd.port.python_tree import PythonTree
from ratchet.amd.port.rules.table import CUDA_RULES, PYTHON_RULES, TEXT_RULES
from ratchet.amd.port.rules.texts import read_lines
from ratchet.amd.port.source import CodeText

OF_TORCH: Final = ("torch/", "ATen/", "c10/", "pybind11/", "c10d/")
OF_DEVICE: Final = re.compile(rb"__(global|device|shared)__|<<<")
MOST_UNREAD: Final = 0.25
"""Share of a text with GPU code that may be no syntax to the parser."""
BUILDS: Final = re.compile(rb"CUDAExtension|cpp_extension|load_inline")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannedFile:
    """A file with what was found in it."""

    found: FoundFile
    findings: tuple[PortFinding, ...]
    for_torch: bool = False
    """torch hipifies its names when it builds it."""
    has_kernels: bool = False
    unparsed: int = 0
    """Places that the parser could not read."""


def scan(path: Path) -> list[ScannedFile]:
    """Return every file of a tree with its findings, in the order of their names.

    Raises:
        PortError: the tree cannot be read, or tree-sitter is missing.
    """
    files = list(find_files(path))
    known = _known(files)
    return [_scan_file(one, known) for one in files]


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Facts of the rest of the repository that a file's rules know."""

    built_by_torch: bool
    constants: dict[str, int]
    """Integers that headers define, with one value."""
    own: frozenset[str]
    """Names that headers define or declare, and the headers' own names."""
    modules: frozenset[str]
    """Names by which Python files may be imported."""


def _known(files: Iterable[FoundFile]) -> Known:
    found: dict[str, int] = {}
    twice: set[str] = set()
    own: set[str] = set()
    for one in files:
        if one.kind == "cuda" and one.path.suffix in HEADER_SUFFIXES:
            tree = CudaTree(one.text)
            own |= tree.own | tree.declared | {one.path.name}
            for name, value in tree.own_constants():
                if found.setdefault(name, value) != value:
                    twice.add(name)
    python = [one for one in files if one.kind == "python"]
    return Known(
        built_by_torch=any(BUILDS.search(one.text) for one in python),
        constants={name: value for name, value in found.items() if name not in twice},
        own=frozenset(own),
        modules=frozenset(p.removesuffix(".py") for one in python for p in one.name.split("/")),
    )


def _scan_file(found: FoundFile, known: Known) -> ScannedFile:
    if found.kind is None:
        unread = _not_read(found.name, f"the file {found.skipped}")
        return ScannedFile(found=found, findings=(unread,) * found.matters)
    source = CodeText(
        file=found.name,
        kind=found.kind,
        text=found.text,
        constants=known.constants,
        own_modules=known.modules,
    )
    if found.kind == "cuda":
        scanned = _scan_cuda(found, source, known)
    elif found.kind == "python":
        scanned = _scan_python(found, source)
    else:
        lines = read_lines(source)
        listed = [one for rule in TEXT_RULES for one in rule.findings(lines, source)]
        scanned = ScannedFile(found=found, findings=_sorted(listed))
    if found.generated:
        without = tuple(replace(one, edits=(), needs=()) for one in scanned.findings)
        scanned = replace(scanned, findings=without)
    return scanned


def _not_read(file: str, detail: str, line: int = 1) -> PortFinding:
    return PortFinding(
        file=file,
        line=line,
        rule="not-read",
        severity="warning",
        detail=detail,
        why="what cannot be read may hold CUDA code",
        fix="look at it, correct it, or move it out of the tree",
    )


def _scan_cuda(found: FoundFile, source: CodeText, known: Known) -> ScannedFile:
    tree = CudaTree(source.text, source.constants, known.own)
    errors = list(tree.nodes("error"))
    unread = []
    if tree.unread > MOST_UNREAD and OF_DEVICE.search(source.text):
        said = f"{tree.unread:.0%} of it does not parse: the other rules saw little of it"
        unread = [_not_read(found.name, said, source.line_of(errors[0].start_byte))]
    for_torch = known.built_by_torch or any(path.startswith(OF_TORCH) for path, _ in tree.includes)
    source = replace(source, for_torch=for_torch)
    return ScannedFile(
        found=found,
        findings=_sorted([*unread, *cuda_findings(tree, source)]),
        for_torch=for_torch,
        has_kernels=_has_kernels(tree),
        unparsed=len(errors),
    )


def cuda_findings(tree: CudaTree, source: CodeText) -> Iterator[PortFinding]:
    """Yield what the rules of CUDA find in a text."""
    for rule in CUDA_RULES:
        for one in rule.findings(tree, source, tree.is_for_rocm):
            if one.rule == "api-name" and source.for_torch:
                why = f"{one.why} torch does so itself when it builds an extension on ROCm."
                one = replace(one, severity="note", why=why, fix="nothing to do")
            yield one


def _has_kernels(tree: CudaTree) -> bool:
    made = any("__global__" in tree.head(one) for one in tree.functions)
    return made or bool(tree.kernel_macros)


def _scan_python(found: FoundFile, source: CodeText) -> ScannedFile:
    try:
        tree = PythonTree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"does not parse: {getattr(error, 'msg', None) or error}"
        line = getattr(error, "lineno", None) or 1
        return ScannedFile(found=found, findings=(_not_read(found.name, said, line),))
    listed = [one for rule in PYTHON_RULES for one in rule.findings(tree, source)]
    has_kernels = False
    for embedded in tree.embedded():
        inner = tree.as_source(embedded)
        read = CudaTree(inner.text, inner.constants)
        has_kernels = has_kernels or _has_kernels(read)
        listed += cuda_findings(read, inner)
    return ScannedFile(
        found=found, findings=_sorted(listed), for_torch=True, has_kernels=has_kernels
    )


def _sorted(findings: Iterable[PortFinding]) -> tuple[PortFinding, ...]:
    return tuple(sorted(findings, key=lambda one: (one.line, ORDER[one.severity], one.rule)))
