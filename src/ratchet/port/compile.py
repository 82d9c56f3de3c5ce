"""Compile ported CUDA code for AMD's GPUs: the proof that what is called clean does build.

The headers are ROCm's, where it is installed, or those that Triton's wheel carries. Nothing is
executed: `Compilation.why_not_executed` says why.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ratchet.base.errors import RatchetError
from ratchet.cross_compile.hip_compiler import HipTools, hip_headers, hip_options
from ratchet.cross_compile.tools import run_tool
from ratchet.port.device_code import device_code
from ratchet.port.hipify import hipified
from ratchet.port.patch import edited
from ratchet.port.python_tree import PythonTree
from ratchet.port.scan import ScannedFile
from ratchet.port.source import CodeText
from ratchet.sandbox.rocm import find_tool
from ratchet.targets.architectures import TARGETS

Status = Literal["compiled", "failed", "not compiled"]
TIME_LIMIT_S: Final = 120.0
PRELUDE: Final = "hip/hip_runtime.h"
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
    with tempfile.TemporaryDirectory(prefix="ratchet-port-") as folder:
        parts = list(_parts(scanned, chosen, Path(folder)))
        jobs = [(name, path, target, Path(folder)) for name, path in parts for target in targets]
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(_compile, jobs))


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


def _parts(
    scanned: Sequence[ScannedFile], chosen: Sequence[ScannedFile], folder: Path
) -> Iterator[tuple[str, Path]]:
    """Write all texts as HIP, and yield those with kernels as the GPU's part."""
    names = {one.found.name for one in chosen}
    for name, text in hip_texts(scanned):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(device_code(text))
        of = name if name in names else name.rsplit(".", 2)[0]
        if of in names and b"__global__" in text:
            yield of, path


def _not(file: str, target: str, why: str) -> Compilation:
    return Compilation(file=file, target=target, status="not compiled", why=why)


def _compile(job: tuple[str, Path, str, Path]) -> Compilation:
    name, path, target, root = job
    clang = find_tool("clang") or find_tool("hipcc")
    assert clang is not None
    output = path.with_name(f"{path.name}.{target}.ll")
    command = [clang, *_options(clang), f"-I{root}", f"--offload-arch={target}", "-o", str(output)]
    command += ["--offload-device-only", "-S", "-emit-llvm", "-O1", "-w", str(path)]
    done = run_tool(command, timeout_s=TIME_LIMIT_S)
    if done.returncode == 0:
        made = output.read_text(errors="replace")
        kernels = len(re.findall(r"^define .*amdgpu_kernel", made, re.MULTILINE))
        if not kernels:
            return _not(name, target, NO_KERNEL)
        return Compilation(
            file=name,
            target=target,
            status="compiled",
            kernels=kernels,
            why_not_executed=NOT_EXECUTED,
        )
    if "invalid target ID" in done.stderr:
        return _not(name, target, f"{Path(clang).name} does not know {target}: install a newer one")
    if OF_TORCH.search(done.stderr):
        return _not(name, target, "its GPU code uses torch's headers; --prove compiles with them")
    if missing := MISSING.search(done.stderr):
        return _not(name, target, f"the header {missing[1]} is not on this machine")
    return Compilation(
        file=name, target=target, status="failed", why=_first_error(done.stderr, root)
    )


def _options(clang: str) -> list[str]:
    tools = HipTools(clang=clang, headers=hip_headers(), bitcode=None)
    return [*hip_options(tools), "-nogpulib", "-DNDEBUG", "-DUSE_ROCM", "-include", PRELUDE]


def _first_error(text: str, root: Path) -> str:
    lines = [line for line in text.splitlines() if "error:" in line] or text.splitlines()
    return (lines[0] if lines else "no message").replace(f"{root}/", "")[:300]


def by_file(compiled: Iterable[Compilation]) -> Mapping[str, list[Compilation]]:
    found: dict[str, list[Compilation]] = {}
    for one in compiled:
        found.setdefault(one.file, []).append(one)
    return found
