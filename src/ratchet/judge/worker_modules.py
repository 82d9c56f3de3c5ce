"""Which of Ratchet's files each sandbox holds: what its worker imports, and nothing beside.

A candidate can read and import whatever its sandbox holds. So no reference, tolerance or check is
among these, and no part of the judge that decides. A test holds the lists to what the files import.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import ratchet

CPP_WORKER: Final = "ratchet.judge.workers.candidate"
TORCH_WORKER: Final = "ratchet.judge.workers.candidate_torch"
ZYGOTE: Final = "ratchet.judge.workers.zygote"
PROFILE_WORKER: Final = "ratchet.judge.workers.static_profile"

_CONFINED: Final = (
    "ratchet",
    "ratchet.callable_module",
    "ratchet.errors",
    "ratchet.watchdog",
    "ratchet.judge",
    "ratchet.judge.channel",
    "ratchet.judge.processes",
    "ratchet.judge.workers",
    "ratchet.judge.workers.candidate",
    "ratchet.judge.workers.confine",
    "ratchet.judge.workers.mapping",
    "ratchet.judge.workers.system_calls",
    "ratchet.kernels",
    "ratchet.kernels.abi",
    "ratchet.kernels.kernel",
    "ratchet.kernels.languages",
    "ratchet.kernels.languages.cpp",
)
"""What any of them needs: the channel, the limits, a kernel's form and its compiler."""
_TRITON: Final = (
    "ratchet.judge.static_profile",
    "ratchet.judge.static_profile.architectures",
    "ratchet.judge.static_profile.fake_driver",
    "ratchet.judge.workers.candidate_triton",
    "ratchet.judge.workers.interpreter_repairs",
)
_MODEL: Final = (
    "ratchet.judge.workers.candidate_model",
    "ratchet.kernels.model_state",
)
_TORCH: Final = (
    *_CONFINED,
    *_TRITON,
    *_MODEL,
    "ratchet.judge.workers.candidate_torch",
    "ratchet.judge.workers.census",
    "ratchet.judge.workers.compilations",
    "ratchet.judge.workers.device",
    "ratchet.judge.workers.device_census",
    "ratchet.judge.workers.driver_memory",
    "ratchet.judge.workers.memory",
    "ratchet.judge.workers.packed_files",
    "ratchet.judge.workers.results",
)
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    CPP_WORKER: _CONFINED,
    TORCH_WORKER: _TORCH,
    ZYGOTE: (
        *_TORCH,
        "ratchet.judge.workers.forks",
        "ratchet.judge.workers.namespaces",
        "ratchet.judge.workers.zygote",
    ),
    PROFILE_WORKER: (
        *_CONFINED,
        *_TRITON,
        *_MODEL,
        "ratchet.judge.static_profile.assembly",
        "ratchet.judge.static_profile.fake_device",
        "ratchet.judge.static_profile.tools",
        "ratchet.judge.workers.static_profile",
        "ratchet.kernels.case",
        "ratchet.kernels.input_structure",
        "ratchet.kernels.inputs",
        "ratchet.kernels.model_file",
        "ratchet.kernels.on_cores",
        "ratchet.kernels.source_module",
        "ratchet.kernels.structure",
    ),
}
"""Of each worker. Beside what it imports itself stands what the sources do that it is sent: those
of a model, and of Triton."""
DATA: Final[Mapping[str, tuple[str, ...]]] = {
    CPP_WORKER: ("kernels/languages/ratchet_abi.h",),
    PROFILE_WORKER: ("judge/static_profile/headers",),
}
"""Other files and folders of the package that a worker reads."""


def package_files(worker: str) -> Iterator[tuple[Path, str]]:
    """Each file or folder that a sandbox holds, and its place below the folder of the code.

    What Python compiled of a module goes with it, where it is kept: a worker starts faster so.
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
