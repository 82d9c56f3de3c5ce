"""Files of a writing run: the kernel, result.json and report.html in one folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ratchet.authors.result import WritingResult, WrittenKernel
from ratchet.errors import RatchetError
from ratchet.files import why_not_new_folder

if TYPE_CHECKING:
    from ratchet.authors.shares import WorkloadWriting

ENDINGS: Final = {"cpp": ".cpp", "hip": ".hip"}
"""Every other language is Python's."""
NOT_PROVEN: Final = "kernel-not-proven"
Render = Callable[[WritingResult], str]


def default_out(problem: str) -> Path:
    """Return the folder of a problem's files: `ratchet-write/<problem>`."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", problem).strip("-.")[:80]
    return Path("ratchet-write") / (slug or "unnamed")


def check_out(out: Path) -> None:
    """Make the folder.

    Raises:
        RatchetError: it cannot be made.
    """
    if why := why_not_new_folder(out):
        raise RatchetError(f"--out {out} {why}: name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RatchetError(
            f"{str(out)!r} cannot be created ({error.strerror}): give another folder with --out"
        ) from error


def write_page(result: WritingResult, out: Path, render: Render) -> Path:
    """Write report.html; a browser that reloads it meanwhile sees the old one or the new one."""
    path = out / "report.html"
    _replace(path, render(result))
    return path


def write_files(result: WritingResult, out: Path, render: Render) -> dict[str, str]:
    """Write the files of a run that has ended; return the paths by kind.

    A kernel that is proven, or right where nothing can time it, is `kernel.*`; one that is right
    and not proven is `kernel-not-proven.*`. A proven one of an earlier run stays beside the latter.
    """
    paths: dict[str, Path] = {}
    with contextlib.suppress(OSError):  # the writes below say what is wrong with the folder
        for old in out.glob(f"{NOT_PROVEN}.*"):
            old.unlink()
    if result.best is not None:
        stands = result.status == "proven" or untimed(result.best)
        kind, stem = ("kernel", "kernel") if stands else ("kernel_not_proven", NOT_PROVEN)
        paths[kind] = out / f"{stem}{ENDINGS.get(result.best.language, '.py')}"
        _replace(paths[kind], result.best.source)
    paths["result"] = out / "result.json"
    _replace(paths["result"], json.dumps(result.to_json(), indent=1))
    paths["page"] = write_page(result, out, render)
    return {kind: str(path) for kind, path in paths.items()}


def untimed(kernel: WrittenKernel) -> bool:
    """Return whether a kernel is right and its machine had no device to time it on."""
    on_gpu = "device" in (kernel.verdict.get("environment") or {})
    return kernel.status == "correct" and kernel.language == "triton" and not on_gpu


def write_summary(result: WorkloadWriting, out: Path) -> dict[str, str]:
    """Write result.json of a workload's run beside its problems' folders; return its path."""
    path = out / "result.json"
    _replace(path, json.dumps(msgspec.to_builtins(result), indent=1))
    return {"result": str(path), "kernels": str(out / "*" / "kernel*.*")}


def _replace(path: Path, text: str) -> None:
    """Write a file whole: it never exists half written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RatchetError(
            f"{str(path)!r} cannot be written ({error.strerror}): give another folder with --out"
        ) from error
