"""A GPU for machines without one: memory from a fake driver, tensors on the machine's cores.

The driver's calls, the descriptors between processes and the sandbox are real; nothing computes
beside the cores, and there are no streams.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.workers import driver_memory
from ratchet.judge.workers.driver_memory import Driver

SOURCE = Path(__file__).with_name("fake_driver.cpp")
FLAVOURS = ("cuda", "hip 6.4", "hip 7.1")
VERSIONS = {"hip 6.4": 60_443_000, "hip 7.1": 70_151_000}


@dataclass(frozen=True, kw_only=True)
class FakeDriver:
    """One build of the fake driver."""

    dialect: Literal["cuda", "hip"]
    path: Path

    def open(self) -> Driver:
        return Driver(self.dialect, library=str(self.path))

    @property
    def held(self) -> tuple[int, int, int]:
        """Handles, mappings and reservations that this process has not given back."""
        counts = (ctypes.c_int64 * 3)()
        ctypes.CDLL(str(self.path)).fake_held(counts)
        return counts[0], counts[1], counts[2]

    @property
    def accelerator(self) -> Accelerator:
        """As the judge is given it: the library lies in a folder that the sandbox must see."""
        return Accelerator(
            torch_name="cpu",
            dialect=self.dialect,
            library=str(self.path),
            flush_bytes=1 << 16,
            name="a fake GPU",
            folders=(str(self.path.parent),),
        )


def build_driver(flavour: str, folder: Path) -> FakeDriver:
    """Put a library of its own into a folder; skips where there is no compiler."""
    dialect: Literal["cuda", "hip"] = "hip" if flavour in VERSIONS else "cuda"
    path = folder / driver_memory.LIBRARIES[dialect]
    path.write_bytes(_compiled(flavour))
    path.chmod(0o755)
    return FakeDriver(dialect=dialect, path=path)


@cache
def _compiled(flavour: str) -> bytes:
    try:
        compiler = find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    version = VERSIONS.get(flavour)
    options = ["-DHIP", f"-DHIP_VERSION={version}"] if version else []
    with tempfile.NamedTemporaryFile() as made:
        words = ["-O1", "-shared", "-fPIC", *options, str(SOURCE), "-o", made.name, "-ldl"]
        subprocess.run([str(compiler), *words], check=True, capture_output=True)
        return Path(made.name).read_bytes()


def open_to_all(folder: Path) -> Path:
    """Let a candidate's fresh uid enter a folder of pytest's, which are for one user alone."""
    for above in (folder, *folder.parents):
        if "pytest" in str(above):
            above.chmod(0o755)
    return folder
