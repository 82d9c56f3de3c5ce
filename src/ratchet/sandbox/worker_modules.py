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
PROFILE_WORKER: Final = "ratchet.cross_compile.worker"

_CONFINED: Final = (
    "ratchet",
    "ratchet.base",
    "ratchet.base.errors",
    "ratchet.base.json_value",
    "ratchet.base.process",
    "ratchet.base.process.channel",
    "ratchet.base.process.families",
    "ratchet.callable_module",
    "ratchet.judge",
    "ratchet.sandbox",
    "ratchet.sandbox.confine",
    "ratchet.sandbox.serving",
    "ratchet.sandbox.system_calls",
    "ratchet.judge.workers",
    "ratchet.judge.workers.candidate",
    "ratchet.kernels",
    "ratchet.kernels.kernel",
)
"""Needed by every worker: the channel, the limits and a kernel's form."""
_CALLED: Final = (
    *_CONFINED,
    "ratchet.judge.workers.candidate.process_state",
    "ratchet.judge.workers.memory",
    "ratchet.judge.workers.memory.layout",
    "ratchet.sandbox.mapping",
    "ratchet.kernels.abi",
)
"""Needed to call a kernel: shared memory and the interface."""
_CPP: Final = (
    *_CALLED,
    "ratchet.base.process.watchdog",
    "ratchet.base.scratch",
    "ratchet.judge.workers.candidate.cpp",
    "ratchet.kernels.languages",
    "ratchet.kernels.languages.cpp",
)
_FORKED: Final = (
    "ratchet.sandbox.namespaces",
    "ratchet.sandbox.enclosed_forks",
)
_TRITON: Final = (
    "ratchet.targets",
    "ratchet.targets.architectures",
    "ratchet.targets.fake_driver",
    "ratchet.targets.generators",
    "ratchet.targets.torch_cuda",
    "ratchet.targets.triton_source",
    "ratchet.kernels.languages",
    "ratchet.kernels.languages.python_file",
)
_EMULATED: Final = (
    "ratchet.judge.emulator",
    "ratchet.judge.emulator.decode",
    "ratchet.judge.emulator.device_printf",
    "ratchet.judge.emulator.forms",
    "ratchet.judge.emulator.instruction_order",
    "ratchet.judge.emulator.kernel_text",
    "ratchet.judge.emulator.launch",
    "ratchet.judge.emulator.loading",
    "ratchet.judge.emulator.modifiers",
    "ratchet.judge.emulator.operands",
    "ratchet.judge.emulator.operations",
    "ratchet.judge.emulator.pretending",
    "ratchet.judge.emulator.registering",
    "ratchet.judge.emulator.scalar_operations",
    "ratchet.judge.emulator.source",
    "ratchet.problems.free_memory",
    "ratchet.judge.emulator.hip_loading",
    "ratchet.judge.emulator.hip_runtime",
    "ratchet.judge.emulator.gpu_memory",
    "ratchet.judge.emulator.linking",
    "ratchet.judge.emulator.extensions",
    "ratchet.judge.emulator.extension_build",
    "ratchet.judge.emulator.extension_calls",
    "ratchet.base.process.watchdog",
    "ratchet.cross_compile",
    "ratchet.cross_compile.assembly",
    "ratchet.cross_compile.hip_compiler",
    "ratchet.cross_compile.hip_sources",
    "ratchet.cross_compile.tools",
    "ratchet.sandbox.rocm",
    "ratchet.kernels.carried_files",
)
_MODEL: Final = (
    "ratchet.judge.workers.candidate.model_class",
    "ratchet.problems",
    "ratchet.problems.model_state",
)
_TORCH: Final = (
    *_CALLED,
    *_TRITON,
    *_EMULATED,
    *_MODEL,
    "ratchet.problems.dtypes",
    "ratchet.judge.workers.candidate.census",
    "ratchet.judge.workers.candidate.device_census",
    "ratchet.judge.workers.candidate.results",
    "ratchet.judge.workers.candidate.with_torch",
    "ratchet.judge.workers.memory.blocks",
    "ratchet.judge.workers.memory.device",
    "ratchet.judge.workers.memory.driver_memory",
    "ratchet.sandbox.packed_files",
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
        "ratchet.cross_compile",
        "ratchet.cross_compile.assembly",
        "ratchet.cross_compile.fake_device",
        "ratchet.cross_compile.device_check",
        "ratchet.cross_compile.hip_compiler",
        "ratchet.cross_compile.hip_sources",
        "ratchet.cross_compile.tools",
        "ratchet.sandbox.rocm",
        "ratchet.cross_compile.worker",
        "ratchet.kernels.carried_files",
        "ratchet.problems.case",
        "ratchet.problems.dtypes",
        "ratchet.problems.input_structure",
        "ratchet.problems.inputs",
        "ratchet.problems.model_file",
        "ratchet.problems.on_cores",
        "ratchet.problems.source_module",
        "ratchet.problems.structure",
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
