"""Files of a writing run: the kernel, result.json and report.html in one folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ratchet.base import files
from ratchet.base.serialise import json_text
from ratchet.write.writing_result import WritingResult, WrittenKernel

if TYPE_CHECKING:
    from ratchet.write.workload_writing import WorkloadWriting

ENDINGS: Final = {"cpp": ".cpp", "hip": ".hip"}
"""Every other language is Python's."""
NOT_PROVEN: Final = "kernel-not-proven"
PAGE = "report.html"
Render = Callable[[WritingResult], str]


def default_out(problem: str) -> Path:
    """Return the folder of a problem's files: `ratchet-write/<problem>`."""
    return Path("ratchet-write") / files.slug(problem)


def write_page(result: WritingResult, out: Path, render: Render) -> Path:
    """Write report.html; a browser that reloads it meanwhile sees the old one or the new one."""
    path = out / PAGE
    files.write_whole(path, render(result).encode())
    return path


def write_files(result: WritingResult, out: Path, render: Render) -> dict[str, str]:
    """Write the files of a run that has ended; return the paths by kind.

    A kernel that is proven, or right where nothing can time it, is `kernel.*`; one that is right
    and not proven is `kernel-not-proven.*`. A proven one of an earlier run stays beside the latter.
    """
    paths = {"result": out / "result.json", "page": out / PAGE}
    texts = {
        paths["result"]: json_text(result.to_json(), indent=1),
        paths["page"]: render(result),
    }
    with contextlib.suppress(OSError):  # the writes below say what is wrong with the folder
        for old in out.glob(f"{NOT_PROVEN}.*"):
            old.unlink()
    if result.best is not None:
        stands = result.status == "proven" or untimed(result.best)
        kind, stem = ("kernel", "kernel") if stands else ("kernel_not_proven", NOT_PROVEN)
        kernel = out / f"{stem}{ENDINGS.get(result.best.language, '.py')}"
        paths, texts = {kind: kernel, **paths}, {kernel: result.best.source, **texts}
    files.write_all({path: text.encode() for path, text in texts.items()})
    return {kind: str(path) for kind, path in paths.items()}


def untimed(kernel: WrittenKernel) -> bool:
    """Return whether a kernel is right and its machine had no device to time it on."""
    on_gpu = "device" in kernel.verdict.environment
    return kernel.status == "correct" and kernel.language == "triton" and not on_gpu


def write_summary(result: WorkloadWriting, out: Path) -> dict[str, str]:
    """Write result.json of a workload's run beside its problems' folders; return its path."""
    path = out / "result.json"
    files.write_whole(path, json_text(result, indent=1).encode())
    return {"result": str(path), "kernels": str(out / "*" / "kernel*.*")}
