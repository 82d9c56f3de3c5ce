"""Check an export as its user meets it: loaded in a new process, tested, its sources read back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from ratchet.base import scratch
from ratchet.base.errors import PublishError
from ratchet.base.process import watchdog
from ratchet.judge.kernels.kernel import Kernel
from ratchet.train.publish.export_result import INSTALL
from ratchet.train.publish.layouts import TESTS, ExportLayout
from ratchet.train.publish.package import kernels_of

TIMEOUT_S: Final = 900.0


def check_kernels_package() -> None:
    """Refuse to go on where the package `kernels` is missing."""
    if find_spec("kernels") is None:
        raise PublishError(f"--to kernels loads the export with `kernels`: {INSTALL}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedExport:
    """The answer of a process that loaded an export and ran its tests, which passed."""

    tests: int
    left_out: dict[str, str]
    """Kernels that could not run here, by their entry, with the reason: plain torch ran."""


def loaded(folder: Path, layout: ExportLayout) -> LoadedExport:
    """Run the tests of an export in a process of its own.

    Raises:
        PublishError: the export does not load, or an op is not right.
    """
    with scratch.folder("export") as place:
        path = []
        if layout.built:
            path = [str(place)]
            package = place / layout.package.name
            shutil.copytree(folder / layout.package, package)
            write_files(package, layout.built)
        return _run(folder / TESTS, path)


def read_back(folder: Path, layout: ExportLayout) -> dict[str, Kernel]:
    """Return the kernels that an export holds, by the hash that they had."""
    place = folder / layout.package
    files = {
        PurePosixPath(path.relative_to(place).as_posix()): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }
    return kernels_of(files)


def write_files(folder: Path, files: dict[PurePosixPath, bytes]) -> None:
    """Write files into a folder that nobody else reads yet."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _run(tests: Path, path: list[str]) -> LoadedExport:
    given = os.environ.get("PYTHONPATH", "")
    environment = {
        **watchdog.environment(),
        "PYTHONPATH": os.pathsep.join([*path, *([given] if given else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, str(tests)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise PublishError(f"the export's tests took over {TIMEOUT_S:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PublishError(f"the export does not pass its own tests, nothing is written: {last}")
    said = json.loads(done.stdout.splitlines()[-1])
    return LoadedExport(tests=said["checked"], left_out=said["left_out"])
