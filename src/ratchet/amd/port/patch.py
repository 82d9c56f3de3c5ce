"""The files, or one kernel, after the fixes: as new texts."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ratchet.amd.port.python_tree import PythonTree
from ratchet.amd.port.rule import CodeText, Edit, inserted
from ratchet.amd.port.rules.libraries import hipified
from ratchet.amd.port.scan import ScannedFile, scan
from ratchet.base.errors import PortError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.source_files import split_files, with_files

_HALF: Final = "(__lane_id() & 32u)"
AMD_AND_CUDA: Final = {
    "PORT_MASK64(mask)": (
        f"(((unsigned long long)(unsigned)(mask) << {_HALF}) & __ballot(1))",
        "(mask)",
    ),
    "PORT_BALLOT32(mask, p)": (
        f"((unsigned)(__ballot(p) >> {_HALF}) & (unsigned)(mask))",
        "__ballot_sync(mask, p)",
    ),
    "PORT_ACTIVEMASK32()": (f"((unsigned)(__ballot(1) >> {_HALF}))", "__activemask()"),
    "PORT_MATCH_ANY32(mask, v)": (
        f"((unsigned)(__match_any(v) >> {_HALF}) & (unsigned)(mask))",
        "__match_any_sync(mask, v)",
    ),
    "PORT_WAVES_PER_EU(threads, blocks)": (
        "((threads) * (blocks) < 256 ? 1 : (threads) * (blocks) / 256)",
        "(blocks)",
    ),
}
"""Macros that mean the same on NVIDIA and AMD, for code that counts warps of 32 lanes.

A wave of CDNA has 64 lanes: two warps of 32 share it. Votes and matches of the wave are cut to the
half that the lane is in, and masks are moved there. ROCm 7 asserts that a mask names active lanes
only, where NVIDIA's full mask may name threads that a block does not have. On RDNA, and on NVIDIA,
nothing changes. Each macro has its text on AMD, and on CUDA; the wave count is for four SIMDs with
64 lanes.
"""

BOM: Final = b"\xef\xbb\xbf"
INCLUDE: Final = re.compile(rb"^[ \t]*#[ \t]*(include|pragma once)[^\n]*\n", re.MULTILINE)


def new_texts(scanned: Iterable[ScannedFile]) -> dict[str, bytes]:
    found = {}
    for one in scanned:
        text = new_text(one)
        if text != one.found.text:
            found[one.found.name] = text
    return found


def new_text(scanned: ScannedFile) -> bytes:
    """Return a file's text with all fixes, hipified if torch does not do that later."""
    text, found = edited(scanned), scanned.found
    is_named = any(one.rule == "api-name" for one in scanned.findings)
    if found.kind == "cuda" and is_named and not (scanned.for_torch or found.generated):
        with contextlib.suppress(PortError):
            return hipified(text, found.name)
    return text


def edited(scanned: ScannedFile, *, lined: bool = False) -> bytes:
    """Return a file's text with the edits of its findings, and the macros that they need.

    With `lined`, a compiler counts its lines as those of the file.
    """
    text = scanned.found.text
    if not any(one.edits for one in scanned.findings):
        return text
    edits = [edit for one in scanned.findings for edit in one.edits]
    edits += _preludes(scanned)
    return apply(text, [*edits, *_lines(text, edits)] if lined else edits)


def _lines(text: bytes, edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield the directives that count on after edits of several lines."""
    places = set()
    for edit in edits:
        if edit.text.count("\n") != text.count(b"\n", edit.start, edit.end):
            at = text.find(b"\n", edit.end) + 1
            if edit.text.endswith("\n") and text[edit.end - 1 : edit.end] == b"\n":
                at = edit.end
            while at > 1 and text[at - 2 : at - 1] == b"\\":  # inside a macro
                at = text.find(b"\n", at) + 1
            places.add(at)
    for at in places - {0}:
        before = text.count(b"\n", 0, at)
        yield inserted(at, f"#line {before + 1}\n")


def apply(text: bytes, edits: Iterable[Edit]) -> bytes:
    """Return a text with replacements. One inside another is left out: a second run makes it."""
    made, end = [], 0
    for edit in sorted(
        dict.fromkeys(edits), key=lambda one: (one.start, one.end > one.start, -one.end)
    ):
        if edit.start >= end:
            made += [text[end : edit.start], edit.text.encode()]
            end = edit.end
    return b"".join((*made, text[end:]))


def _preludes(scanned: ScannedFile) -> Iterator[Edit]:
    """Yield the insertions of the macros: into a file, and into each string with CUDA code."""
    if scanned.found.kind == "cuda":
        needed = {name for one in scanned.findings for name in one.needs}
        yield from _prelude(scanned.found.text, 0, needed)
        return
    source = CodeText(file=scanned.found.name, kind="python", text=scanned.found.text)
    tree = PythonTree(source)
    for embedded in tree.embedded():
        if embedded.shift is None:
            continue
        end = embedded.shift + len(embedded.text)
        needed = {
            name
            for one in scanned.findings
            for name in one.needs
            if any(embedded.shift <= edit.start < end for edit in one.edits)
        }
        yield from _prelude(embedded.text, embedded.shift, needed)


def _prelude(text: bytes, shift: int, needed: set[str]) -> Iterator[Edit]:
    """Yield the insertion of the macros that a text lacks, in the order of their names."""
    made = ""
    for signature in sorted(AMD_AND_CUDA):
        name = signature.partition("(")[0]
        if name in needed and f"#define {name}(".encode() not in text:
            amd, cuda = AMD_AND_CUDA[signature]
            made += f"#ifndef {name}\n#ifdef __HIP_PLATFORM_AMD__\n"
            made += f"#define {signature} {amd}\n#else\n#define {signature} {cuda}\n"
            made += "#endif\n#endif\n"
    if made:
        yield inserted(shift + _place(text), made)


def _place(text: bytes) -> int:
    """Return where macros may stand: after the first lines of includes, or at the top."""
    first = INCLUDE.search(text)
    if first is None:
        return len(BOM) if text.startswith(BOM) else int(text.startswith(b"\n"))
    end = first.end()
    while (more := INCLUDE.match(text, end)) is not None:
        end = more.end()
    return end


SIGNS: Final = ("<<<", "cuda", "__global__")  # words of which CUDA code has at least one
_HIP: Final = re.compile(
    r'^\s*#\s*include\s*[<"](?:(?:ATen/|c10/)?hip/|ratchet_abi\.h)', re.MULTILINE
)
"""An include of code for AMD, which is left as it is, unless it names CUDA too."""


def ported(kernel: Kernel) -> Kernel:
    """Return a kernel with the patch that `ratchet port` makes of its file, or as it is.

    torch renames CUDA's functions itself when it builds an extension. Raises PortError without
    tree-sitter.
    """
    if not any(sign in kernel.source for sign in SIGNS):
        return kernel
    if _HIP.search(kernel.source) and "cuda" not in kernel.source.lower():
        return kernel
    text, carried = split_files(kernel.source)
    with tempfile.TemporaryDirectory(prefix="ratchet-port-") as root:
        home = carried.write(Path(root))
        path = home / ("kernel.cu" if kernel.language == "hip" else "kernel.py")
        path.write_bytes(text.encode())
        for scanned in scan(Path(root)):
            if any(one.edits for one in scanned.findings):
                (Path(root) / scanned.found.name).write_bytes(edited(scanned))
        comment = "#" if path.suffix == ".py" else "//"
        text = path.read_bytes().decode()
        return replace(kernel, source=with_files(text, carried.read(Path(root)), comment))
