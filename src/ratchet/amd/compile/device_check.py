"""Compile a tree's texts for AMD GPUs, to see whether they build. Nothing is kept or run."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import (
    HipTools,
    hip_headers,
    shared_options,
    used,
    write_files,
)
from ratchet.amd.compile.tools import run_tool, why_not_started
from ratchet.judge.sandbox.rocm import find_tool

TIME_LIMIT_S: Final = 120.0
MOST_SAID: Final = 1 << 16
WHOLE, DEVICE = "whole", "device"
KERNEL: Final = re.compile(r'^define .*amdgpu_kernel void @"?([\w$.]+)', re.MULTILINE)
MISSING: Final = re.compile(r"fatal error: '([^']+)' file not found")
AFTER: Final = "-idirafter"
EXTENSION: Final = ("-DTORCH_EXTENSION_NAME=extension", "-DTORCH_API_INCLUDE_EXTENSION_H")
"""Macros that torch's builds give."""


class CheckedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is compiled."""

    name: str
    folders: tuple[str, ...] = ()  # folders that are searched for headers, after the root
    macros: tuple[tuple[str, ...], ...] = ()  # what builds define: tried if it fails without


class DeviceTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a tree by their names from one root, with and without the host's code."""

    device: dict[str, str]
    whole: dict[str, str]
    outer: dict[str, str]  # headers of a system by the names that they are asked for
    macros: dict[str, list[str]]  # lines of builds that define macros, by folder
    units: tuple[CheckedUnit, ...]
    targets: tuple[str, ...]
    headers: dict[str, str] = {}  # folders that `precompile` filled, by target
    with_torch: bool = False  # torch's headers are found, and a whole text may be an extension's


class DeviceBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The compiler's answer on one text for one target."""

    unit: str
    target: str
    kernels: tuple[str, ...]  # their mangled names
    said: str  # the compiler's words if it failed, else ""
    missing: str = ""  # a header that the text with the host's code asks for in vain


def check_device(texts: DeviceTexts, folder: Path) -> list[DeviceBuild]:
    """Compile each unit for each target in an empty folder. Raises KernelError for a bad name."""
    for name, files in ((WHOLE, texts.whole), (DEVICE, texts.device), ("outer", texts.outer)):
        (folder / name).mkdir()
        write_files(files, folder / name)
    jobs = [
        _Job(
            unit=unit,
            target=target,
            root=folder,
            headers=texts.headers.get(target),
            with_torch=texts.with_torch,
        )
        for unit in texts.units
        for target in texts.targets
    ]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(_Job.build, jobs))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    unit: CheckedUnit
    target: str
    root: Path
    headers: str | None
    with_torch: bool

    def build(self) -> DeviceBuild:
        """Compile with the host's code and without, and with what the builds define.

        A kernel's template is compiled where a launch names its types, which the host's code does;
        but its headers may not be here.
        """
        said, whole, missing, built = "", "", "", None
        for macros in dict.fromkeys(((), *self.unit.macros)):
            for side in (WHOLE, DEVICE):
                found = self._compiled(side, macros)
                if not found.said and found.kernels:
                    return found
                built = built or (None if found.said else found)
                said = found.said or said
                if side == WHOLE and (absent := MISSING.search(found.said)):
                    missing = absent[1]
                elif side == WHOLE:
                    whole = found.said
        return built or DeviceBuild(
            unit=self.unit.name, target=self.target, kernels=(), said=whole or said, missing=missing
        )

    def _compiled(self, side: str, macros: tuple[str, ...]) -> DeviceBuild:
        root = self.root / side
        source = root / self.unit.name
        made = source.with_name(f"{source.name}.{self.target}.ll")
        # Behind the system's folders: a tree's own `math.h` is not everybody's
        folders = [str(root / one) for one in ("", *self.unit.folders)]
        after = [word for one in (*folders, str(self.root / "outer")) for word in (AFTER, one)]
        command = [*self._begin(), *after, *macros]
        command += ["-S", "-emit-llvm", "-O1", "-o", str(made), str(source)]
        done = run_tool(command, limit_s=TIME_LIMIT_S)
        kernels, said = list[str](), ""
        if done.returncode != 0:
            said = why_not_started(command, done) or done.stderr or "no message"
            said = said.replace(f"{root}/", "")[:MOST_SAID]
        else:
            text = made.read_text(errors="replace")
            made.unlink()
            kernels = KERNEL.findall(text)
        return DeviceBuild(
            unit=self.unit.name, target=self.target, kernels=tuple(kernels), said=said
        )

    def _begin(self) -> list[str]:
        clang = find_tool("clang") or find_tool("hipcc")
        assert clang is not None
        tools = HipTools(clang=clang, headers=hip_headers(), bitcode=None)
        headers = None if self.headers is None else Path(self.headers)
        options = shared_options(
            tools, ARCHITECTURES[self.target], with_torch=self.with_torch, precompiled=headers
        )
        options += EXTENSION if self.with_torch else ()
        return [clang, *options, "--offload-device-only", *used(headers, "device"), "-DUSE_ROCM"]
