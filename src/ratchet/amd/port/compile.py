"""Compile ported CUDA code for AMD's GPUs: the proof that what is called clean does build.

The headers are ROCm's, where it is installed, or those that Triton's wheel carries. Nothing is
executed: `Compilation.why_not_executed` says why.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from ratchet.amd.architectures import TARGETS
from ratchet.amd.compile.device_check import TIME_LIMIT_S, DeviceBuild, DeviceTexts
from ratchet.amd.compile.hip_compiler import hip_headers
from ratchet.amd.compile.process import ProfileProcess
from ratchet.amd.port.device_code import device_code
from ratchet.amd.port.files import HEADER_SUFFIXES
from ratchet.amd.port.hipify import hipified
from ratchet.amd.port.patch import edited
from ratchet.amd.port.python_tree import PythonTree
from ratchet.amd.port.scan import ScannedFile
from ratchet.amd.port.source import CodeText
from ratchet.base.errors import JudgeError, KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure
from ratchet.judge.sandbox.rocm import find_tool

Status = Literal["compiled", "failed", "not compiled"]
NO_COMPILER: Final = "clang is not installed: apt install clang-19, or install ROCm"
NO_HEADERS: Final = "there are no headers of HIP: pip install triton, or install ROCm"
NOT_EXECUTED: Final = (
    "compiled, not executed: a problem says what is right; "
    "execute it with ratchet judge PROBLEM KERNEL --target gfx942"
)
OF_TORCH: Final = re.compile(r"undeclared identifier '(at|c10|torch)'")
NO_KERNEL: Final = "no launch says with which arguments its kernels' templates are used"
MISSING: Final = re.compile(r"fatal error: '([^']+)' file not found")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    """The compiler's answer on one file's GPU code for one target."""

    file: str
    target: str
    status: Status
    why: str = ""
    """The first error, or what is missing."""
    kernels: int = 0
    why_not_executed: str = ""


def is_clean(scanned: ScannedFile) -> bool:
    """Return whether the patch leaves no error in a file's own text."""
    return all(
        one.fixable or one.severity != "error" or one.rule == "api-name" for one in scanned.findings
    )


def compile_clean(
    scanned: Sequence[ScannedFile], targets: Sequence[str] = TARGETS
) -> list[Compilation]:
    """Compile each file that has kernels and is clean once it is patched, for each target."""
    chosen = [one for one in scanned if one.has_kernels and is_clean(one)]
    if not chosen:
        return []
    if why := why_not():
        return [_not(one.found.name, target, why) for one in chosen for target in targets]
    texts, of = _texts(scanned, chosen)
    asked = DeviceTexts(texts=texts, units=tuple(of), targets=tuple(targets))
    try:
        builds = _checked(asked)
    except (ChildFailure, JudgeError, KernelError) as error:
        why = f"the compiler's process: {error}"
        return [_not(one.found.name, target, why) for one in chosen for target in targets]
    return [_compilation(of[one.unit], one) for one in builds]


def _checked(texts: DeviceTexts) -> list[DeviceBuild]:
    """Compile texts in a sandbox: those of a stranger's may name any file of the user's."""
    clock = Clock.of(TIME_LIMIT_S * max(1, len(texts.units) * len(texts.targets)))
    with contextlib.closing(ProfileProcess(clock)) as process:
        reply = process.ask({"do": "check", "texts": msgspec.to_builtins(texts)})
    try:
        return msgspec.convert(reply.get("builds"), list[DeviceBuild])
    except msgspec.ValidationError as error:
        raise KernelError("it answered nonsense") from error


def why_not() -> str:
    """Return why nothing can be compiled here; "" if it can."""
    if find_tool("clang") is None and find_tool("hipcc") is None:
        return NO_COMPILER
    return "" if hip_headers() is not None else NO_HEADERS


def hip_texts(scanned: Iterable[ScannedFile]) -> Iterator[tuple[str, bytes]]:
    """Yield each CUDA text as HIP, patched and hipified: what a build on ROCm compiles."""
    for one in scanned:
        if one.found.kind == "cuda":
            yield one.found.name, _as_hip(edited(one), one.found.name)
        elif one.found.kind == "python" and one.has_kernels:
            source = CodeText(file=one.found.name, kind="python", text=edited(one))
            for index, inner in enumerate(PythonTree(source).embedded()):
                name = f"{one.found.name}.{index}.cu"
                yield name, _as_hip(inner.text, name)


def _as_hip(text: bytes, name: str) -> bytes:
    try:
        return hipified(text, name)
    except RatchetError:
        return text


def _texts(
    scanned: Sequence[ScannedFile], chosen: Sequence[ScannedFile]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the GPU's part of all texts as HIP, and of those with kernels the file they are of."""
    names = {one.found.name for one in chosen}
    texts, units = _plain_headers(scanned), {}
    for name, text in hip_texts(scanned):
        texts[name] = device_code(text).decode(errors="replace")
        of = name if name in names else name.rsplit(".", 2)[0]
        if of in names and b"__global__" in text:
            units[name] = of
    return texts, units


def _plain_headers(scanned: Sequence[ScannedFile]) -> dict[str, str]:
    """Return the headers of the tree that no rule reads: they say nothing of CUDA."""
    found = (one.found for one in scanned)
    return {
        one.name: one.path.read_text(errors="replace")
        for one in found
        if one.kind is None and not one.skipped and one.path.suffix in HEADER_SUFFIXES
    }


def _not(file: str, target: str, why: str) -> Compilation:
    return Compilation(file=file, target=target, status="not compiled", why=why)


def _compilation(name: str, built: DeviceBuild) -> Compilation:
    target, said = built.target, built.said
    if not said and not built.kernels:
        return _not(name, target, NO_KERNEL)
    if not said:
        return Compilation(
            file=name,
            target=target,
            status="compiled",
            kernels=built.kernels,
            why_not_executed=NOT_EXECUTED,
        )
    if "invalid target ID" in said:
        clang = Path(find_tool("clang") or "clang").name
        return _not(name, target, f"{clang} does not know {target}: install a newer one")
    if OF_TORCH.search(said):
        return _not(name, target, "its GPU code uses torch's headers; --prove compiles with them")
    if missing := MISSING.search(said):
        return _not(name, target, f"the header {missing[1]} is not on this machine")
    why = _first_error(said)
    if name.endswith(HEADER_SUFFIXES):  # it may need what stands before it where it is included
        return _not(name, target, f"a header, and alone it does not compile: {why}")
    return Compilation(file=name, target=target, status="failed", why=why)


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error:" in line] or text.splitlines()
    return lines[0][:300]


def by_file(compiled: Iterable[Compilation]) -> Mapping[str, list[Compilation]]:
    found: dict[str, list[Compilation]] = {}
    for one in compiled:
        found.setdefault(one.file, []).append(one)
    return found
