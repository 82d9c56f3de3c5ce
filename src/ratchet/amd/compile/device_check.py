"""Compile the GPU's part of a tree's texts to see whether it builds; nothing is kept or run."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.compile.hip_compiler import HipTools, hip_headers, hip_options
from ratchet.amd.compile.hip_sources import write_files
from ratchet.amd.compile.tools import run_tool
from ratchet.judge.sandbox.rocm import find_tool

TIME_LIMIT_S: Final = 120.0
PRELUDE: Final = "hip/hip_runtime.h"
MOST_SAID: Final = 1 << 16


class DeviceTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a tree without host code, by their names from one root."""

    texts: dict[str, str]
    units: tuple[str, ...]
    """The names of those that are compiled."""
    targets: tuple[str, ...]


class DeviceBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The compiler's answer on one text for one target."""

    unit: str
    target: str
    kernels: int
    said: str
    """The compiler's words if it failed, else ""."""


def check_device(texts: DeviceTexts, folder: Path) -> list[DeviceBuild]:
    """Compile each unit for each target in an empty folder; raises KernelError for a bad name."""
    write_files(texts.texts, folder)
    jobs = [(unit, target, folder) for unit in texts.units for target in texts.targets]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(_build, jobs))


def _build(job: tuple[str, str, Path]) -> DeviceBuild:
    unit, target, root = job
    clang = find_tool("clang") or find_tool("hipcc")
    assert clang is not None
    source = root / unit
    made = source.with_name(f"{source.name}.{target}.ll")
    command = [clang, *_options(clang), f"-I{root}", f"--offload-arch={target}", "-o", str(made)]
    command += ["--offload-device-only", "-S", "-emit-llvm", "-O1", "-w", str(source)]
    done = run_tool(command, timeout_s=TIME_LIMIT_S)
    if done.returncode != 0:
        said = (done.stderr or "no message").replace(f"{root}/", "")[:MOST_SAID]
        return DeviceBuild(unit=unit, target=target, kernels=0, said=said)
    text = made.read_text(errors="replace")
    made.unlink()
    kernels = len(re.findall(r"^define .*amdgpu_kernel", text, re.MULTILINE))
    return DeviceBuild(unit=unit, target=target, kernels=kernels, said="")


def _options(clang: str) -> list[str]:
    tools = HipTools(clang=clang, headers=hip_headers(), bitcode=None)
    return [*hip_options(tools), "-nogpulib", "-DNDEBUG", "-DUSE_ROCM", "-include", PRELUDE]
