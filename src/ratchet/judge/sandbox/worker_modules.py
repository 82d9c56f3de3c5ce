"""The list of Ratchet's files in each sandbox: what its worker imports, and nothing else.

A candidate can read and import whatever its sandbox holds. So the lists contain no reference,
tolerance or check, and no part of the judge that decides. A test compares them with the imports.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import ratchet

CPP_WORKER: Final = "ratchet.judge.workers.candidate.cpp"
TORCH_WORKER: Final = "ratchet.judge.workers.candidate.with_torch"
ZYGOTE: Final = "ratchet.judge.workers.zygote"
CPP_ZYGOTE: Final = "ratchet.judge.workers.zygote_cpp"
PROFILE_WORKER: Final = "ratchet.amd.compile.worker"

_CONFINED: Final = (
    "ratchet",
    "ratchet.base",
    "ratchet.base.errors",
    "ratchet.base.json_value",
    "ratchet.base.process",
    "ratchet.base.process.channel",
    "ratchet.base.process.families",
    "ratchet.base.callable_module",
    "ratchet.judge",
    "ratchet.judge.sandbox",
    "ratchet.judge.sandbox.confine",
    "ratchet.judge.sandbox.serving",
    "ratchet.judge.sandbox.system_calls",
    "ratchet.judge.workers",
    "ratchet.judge.workers.candidate",
    "ratchet.judge.kernels",
    "ratchet.judge.kernels.kernel",
)
"""Needed by every worker: the channel, the limits and a kernel's form."""
_CALLED: Final = (
    *_CONFINED,
    "ratchet.judge.workers.candidate.process_state",
    "ratchet.judge.workers.memory",
    "ratchet.judge.workers.memory.layout",
    "ratchet.judge.sandbox.mapping",
    "ratchet.judge.kernels.abi",
)
"""Needed to call a kernel: shared memory and the interface."""
_CPP: Final = (
    *_CALLED,
    "ratchet.base.process.watchdog",
    "ratchet.base.scratch",
    "ratchet.judge.workers.candidate.cpp",
    "ratchet.judge.kernels.languages",
    "ratchet.judge.kernels.languages.cpp",
)
_FORKED: Final = (
    "ratchet.judge.sandbox.namespaces",
    "ratchet.judge.sandbox.enclosed_forks",
)
_TRITON: Final = (
    "ratchet.targets",
    "ratchet.amd.architectures",
    "ratchet.amd.compile.fake_driver",
    "ratchet.amd.compile.generators",
    "ratchet.amd.compile.torch_cuda",
    "ratchet.amd.compile.triton_source",
    "ratchet.judge.kernels.languages",
    "ratchet.judge.kernels.languages.python_file",
)
_EMULATED: Final = (
    "ratchet.amd.emulator",
    "ratchet.amd.emulator.decode",
    "ratchet.amd.emulator.device_printf",
    "ratchet.amd.emulator.forms",
    "ratchet.amd.emulator.instruction_order",
    "ratchet.amd.emulator.kernel_text",
    "ratchet.amd.emulator.launch",
    "ratchet.amd.emulator.loading",
    "ratchet.amd.emulator.modifiers",
    "ratchet.amd.emulator.operands",
    "ratchet.amd.emulator.operations",
    "ratchet.amd.emulator.pretending",
    "ratchet.amd.emulator.registering",
    "ratchet.amd.emulator.scalar_operations",
    "ratchet.amd.emulator.source",
    "ratchet.judge.problems.free_memory",
    "ratchet.amd.emulator.hip_loading",
    "ratchet.amd.emulator.hip_runtime",
    "ratchet.amd.emulator.gpu_memory",
    "ratchet.amd.emulator.linking",
    "ratchet.amd.emulator.extensions",
    "ratchet.amd.emulator.extension_build",
    "ratchet.amd.emulator.extension_calls",
    "ratchet.base.process.watchdog",
    "ratchet.amd.compile",
    "ratchet.amd.compile.assembly",
    "ratchet.amd.compile.hip_compiler",
    "ratchet.amd.compile.hip_sources",
    "ratchet.amd.compile.tools",
    "ratchet.judge.sandbox.rocm",
    "ratchet.judge.kernels.carried_files",
)
_MODEL: Final = (
    "ratchet.judge.workers.candidate.model_class",
    "ratchet.judge.problems",
    "ratchet.judge.problems.model_state",
)
_TORCH: Final = (
    *_CALLED,
    *_TRITON,
    *_EMULATED,
    *_MODEL,
    "ratchet.judge.problems.dtypes",
    "ratchet.judge.workers.candidate.census",
    "ratchet.judge.workers.candidate.device_census",
    "ratchet.judge.workers.candidate.results",
    "ratchet.judge.workers.candidate.with_torch",
    "ratchet.judge.workers.memory.blocks",
    "ratchet.judge.workers.memory.device",
    "ratchet.judge.workers.memory.driver_memory",
    "ratchet.judge.sandbox.packed_files",
)
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    CPP_WORKER: _CPP,
    TORCH_WORKER: _TORCH,
    ZYGOTE: (*_TORCH, *_FORKED, "ratchet.judge.workers.zygote"),
    CPP_ZYGOTE: (*_CPP, *_FORKED, "ratchet.judge.workers.zygote_cpp"),
    PROFILE_WORKER: (
        *_CONFINED,
        *_TRITON,
        *_MODEL,
        "ratchet.base.process.watchdog",
        "ratchet.amd.compile",
        "ratchet.amd.compile.assembly",
        "ratchet.amd.compile.fake_device",
        "ratchet.amd.compile.device_check",
        "ratchet.amd.compile.hip_compiler",
        "ratchet.amd.compile.hip_sources",
        "ratchet.amd.compile.tools",
        "ratchet.judge.sandbox.rocm",
        "ratchet.amd.compile.worker",
        "ratchet.judge.kernels.carried_files",
        "ratchet.judge.problems.case",
        "ratchet.judge.problems.dtypes",
        "ratchet.judge.problems.input_structure",
        "ratchet.judge.problems.inputs",
        "ratchet.judge.problems.model_file",
        "ratchet.judge.problems.on_cores",
        "ratchet.judge.problems.source_module",
        "ratchet.judge.problems.structure",
    ),
}
"""The modules of each worker: those that it imports, and those that the sources import which the
judge sends it, for a model and for Triton."""
DATA: Final[Mapping[str, tuple[str, ...]]] = {
    CPP_WORKER: ("kernels/languages/ratchet_abi.h",),
    CPP_ZYGOTE: ("kernels/languages/ratchet_abi.h",),
    TORCH_WORKER: ("cross_compile/headers", "cross_compile/rocm"),
    ZYGOTE: ("cross_compile/headers", "cross_compile/rocm"),
    PROFILE_WORKER: ("cross_compile/headers", "cross_compile/rocm"),
}
"""Other files and folders of the package that a worker reads."""


def package_files(worker: str) -> Iterator[tuple[Path, str]]:
    """Yield each file or folder in a sandbox, and its place below the folder of the code.

    A module's compiled form goes with it if it is kept: a worker then starts faster.
    """
    package = Path(ratchet.__file__).parent
    for name in MODULES[worker]:
        path = _file_of(package, name)
        yield path, _place(package, path)
        kept = Path(importlib.util.cache_from_source(str(path)))
        if kept.is_relative_to(package) and kept.is_file():
            yield kept, _place(package, kept)
    for place in DATA.get(worker, ()):
        yield package / place, _place(package, package / place)


def _file_of(package: Path, name: str) -> Path:
    path = package.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _place(package: Path, path: Path) -> str:
    return str(Path(package.name) / path.relative_to(package))
