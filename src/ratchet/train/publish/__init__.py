"""Take proven kernels and programs out of Ratchet: packages, patches, exported programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from ratchet.base import Json, scratch
from ratchet.base.errors import PublishError
from ratchet.base.process import watchdog
from ratchet.judge.kernels.kernel import Kernel
from ratchet.train.publish.admitted import admit, figure, judged_again
from ratchet.train.publish.export_result import (
    INSTALL,
    ExportedKernel,
    ExportResult,
    Form,
    new_folder,
    written_files,
)
from ratchet.train.publish.layouts import TESTS, ExportLayout, hub_layout, wheel_layout
from ratchet.train.publish.package import KernelPackage, kernels_of
from ratchet.train.publish.patch import export_patch
from ratchet.train.publish.program import export_workload
from ratchet.train.workloads.names import LoadOptions

# The library call behind `ratchet export`: admit, write, load back, judge again.

TIMEOUT_S: Final = 900.0
ALONE: Final = """\
import os, runpy, sys
sys.modules["ratchet"] = None
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as where Ratchet is not installed."""


def tested(folder: Path, layout: ExportLayout) -> tuple[int, dict[str, str]]:
    """Run the tests of an export in a process without Ratchet; return how many passed.

    Also return the kernels that could not run here, by their entry, with the reason: plain torch
    ran. Raises PublishError: the export does not load, or an op is not right.
    """
    with scratch.folder("export") as place:
        path = []
        if layout.built:
            path = [str(place)]
            package = place / layout.package.name
            shutil.copytree(folder / layout.package, package)
            write_files(package, layout.built)
        said = _run(folder / TESTS, path)
    return said["checked"], said["left_out"]


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


def _run(tests: Path, path: list[str]) -> Json:
    given = os.environ.get("PYTHONPATH", "")
    environment = {
        **watchdog.environment(),
        "PYTHONPATH": os.pathsep.join([*path, *([given] if given else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, str(tests)],
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
    return json.loads(done.stdout.splitlines()[-1])


_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def run_export(
    subject: str,
    form: Form,
    out: Path,
    *,
    script: Path | None = None,
    name: str | None = None,
    prove: bool = False,
    options: LoadOptions | None = None,
    ledger: str | None = None,
) -> ExportResult:
    """Export a recipe or, to `export`, a workload, which `options` build.

    Raises RatchetError: a mistake in the call, or an export that fails its checks. Nothing is
    written then.
    """
    if form == "patch":
        return export_patch(Path(subject), script, out)
    if script is not None:
        raise PublishError(f"--script goes with --to patch, not with --to {form}: leave it out")
    if form == "export":
        return export_workload(subject, options or {}, out)
    return export_kernels(Path(subject), form, out, name=name, prove=prove, ledger=ledger)


def export_kernels(
    recipe: Path,
    form: Literal["kernels", "wheel"],
    out: Path,
    *,
    name: str | None = None,
    prove: bool = False,
    ledger: str | None = None,
) -> ExportResult:
    """Publish a recipe's kernels in a new folder, after loading them from it and judging them.

    With `prove` the judge times them again too. Nothing is left in `out` if a check fails. Raises
    RatchetError: a recipe without proven kernels, a folder that holds something, an export that
    does not load.
    """
    if form == "kernels" and find_spec("kernels") is None:
        raise PublishError(f"--to kernels loads the export with `kernels`: {INSTALL}")
    with new_folder(out) as stage:
        if name is not None and not _NAME.fullmatch(name):
            raise PublishError(f"--name {name!r}: use small letters, digits and single hyphens")
        admitted = admit(recipe, ledger)
        if name is None:
            words = re.findall(r"[a-z0-9]+", admitted.recipe.workload.lower())
            name = "-".join(["kernels", *words])[:60].rstrip("-")
        package = KernelPackage(admitted, name.replace("-", "_"))
        layout = hub_layout(package) if form == "kernels" else wheel_layout(package)
        write_files(stage, layout.files)
        tests, left_out = tested(stage, layout)
        again = read_back(stage, layout)
        pairs = [(one, again[one.kernel.hash]) for one in admitted.kernels]
        statuses = judged_again(pairs, ledger, timed=prove)
        files = written_files(stage)
    loader = "kernels.get_local_kernel" if form == "kernels" else "Python"
    said = "judged again, with their speed" if prove else "right, by the judge"
    why = next(iter(left_out.values()), "")
    plain = f", where plain torch ran for {len(left_out)} kernels: {why}" if why else ""
    return ExportResult(
        subject=str(recipe),
        to=form,
        out=str(out),
        files=files,
        checks=(
            f"{tests} tests passed in a new process that loaded it with {loader}{plain}",
            f"{len(pairs)} kernels, read back from the folder, are {said}",
        ),
        kernels=tuple(
            ExportedKernel(
                entry=one.kernel.entry,
                library=one.installed.library,
                language=one.kernel.language,
                hash=one.kernel.hash,
                speedup=figure(one),
                after=statuses.get(one.kernel.entry, "-"),
            )
            for one in admitted.kernels
        ),
        left_out=tuple(admitted.left_out.items()),
    )
