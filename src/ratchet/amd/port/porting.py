"""The library call behind `ratchet port`: scan, patch, compile, write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.amd.architectures import TARGETS, find_architectures
from ratchet.amd.port.compile import compile_clean, hip_texts
from ratchet.amd.port.patch import new_texts
from ratchet.amd.port.port_result import PortResult
from ratchet.amd.port.scan import ScannedFile, scan
from ratchet.base.errors import PortError, RepositoryError
from ratchet.base.files import make_folder, why_not_new_file, write_all
from ratchet.base.git import diff_of, git
from ratchet.base.serialise import json_text

PATCH, DOCUMENT, PAGE, HIP = "port.patch", "port.json", "report.html", "hip"


@dataclass(frozen=True, kw_only=True, slots=True)
class PortSettings:
    write: bool = False
    """Change the tree."""
    force: bool = False
    """Change it even if git says that it has changes."""
    targets: Sequence[str] = TARGETS
    compiles: bool = True


def port(path: Path, settings: PortSettings | None = None) -> PortResult:
    """Find what stands between a tree and ROCm, and rewrite what can be rewritten.

    The tree changes only with `settings.write`, and then all of its files or none.

    Raises:
        PortError: the tree cannot be read, has changes that git does not hold, or tree-sitter is
            missing.
        FileError: the tree cannot be written.
    """
    settings = settings or PortSettings()
    find_architectures(list(settings.targets))
    if settings.write and not settings.force:
        _check_clean(path)
    began = time.perf_counter()
    scanned = scan(path)
    seconds = time.perf_counter() - began
    new = new_texts(scanned)
    old = {one.found.name: one.found.text for one in scanned}
    result = PortResult(
        path=str(path),
        scanned=tuple(scanned),
        new=new,
        patch=diff_of(old, new),
        compiled=tuple(compile_clean(scanned, settings.targets)) if settings.compiles else (),
        seconds=seconds,
    )
    if settings.write:
        _write(result, scanned)
        result = replace(result, written=True)
    return result


def _check_clean(path: Path) -> None:
    folder = path if path.is_dir() else path.parent
    try:
        changes = git(folder, "status", "--porcelain", "--untracked-files=all", "--", ".")
    except RepositoryError as error:
        raise PortError(
            f"{path} is in no git repository that could bring it back: commit it to one, or give "
            "--force"
        ) from error
    if changes:
        first = changes.splitlines()[0][3:]
        raise PortError(
            f"{path} has changes that no commit holds ({first}): commit or stash them, or give "
            "--force"
        )


def _write(result: PortResult, scanned: Sequence[ScannedFile]) -> None:
    paths = {one.found.name: one.found.path for one in scanned}
    for name in result.new:
        if why := why_not_new_file(paths[name]):
            raise PortError(f"{paths[name]} {why}: nothing was changed")
    write_all({paths[name]: text for name, text in result.new.items()})


def write_outputs(result: PortResult, out: Path, page: str) -> PortResult:
    """Write the patch, the document, the page and the HIP texts into a folder.

    Raises:
        FileError: the folder cannot be written.
    """
    make_folder(out)
    contents = {out / PATCH: result.patch, out / PAGE: page.encode()}
    for name, text in hip_texts(one for one in result.scanned if one.has_kernels):
        place = out / HIP / Path(name).with_suffix(".hip")
        make_folder(place.parent)
        contents[place] = text
    listed = (*(str(one) for one in contents), str(out / DOCUMENT))
    result = replace(result, outputs=listed)
    contents[out / DOCUMENT] = (json_text(result.as_json()) + "\n").encode()
    write_all(contents)
    return result
