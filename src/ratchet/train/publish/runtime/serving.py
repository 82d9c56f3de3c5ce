"""Load the kernels of a package, so that its ops run them."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import torch

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry, source_files
from ratchet.judge.kernels.languages import cpp
from ratchet.train.publish.runtime.cpu import features


def serve_kernels(folder: Path) -> dict[str, str]:
    """Load the kernels that `kernels.json` lists; return why one cannot serve here, by its entry.

    The op of such an entry runs plain torch, and one warning says so.
    """
    manifest = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    missing = set(manifest["features"]) - set(features())
    left_out: dict[str, str] = {}
    for row in manifest["kernels"]:
        why = _why_not(folder, row, missing)
        try:
            if not why:
                _serve(folder, row)
        except KernelError as error:
            why = str(error)
        if why:
            left_out[row["entry"]] = why
    if left_out:
        entry, why = next(iter(left_out.items()))
        said = f"{len(left_out)} of its kernels do not run here, plain torch does: {entry}, {why}"
        warnings.warn(f"{folder.name}: {said}", RuntimeWarning, stacklevel=3)
    return left_out


def _why_not(folder: Path, row: dict[str, str], missing: set[str]) -> str:
    if row["language"] == "triton":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        return "" if torch.cuda.is_available() else "this machine has no GPU"
    if not (folder / row["library"]).is_file():
        return "it is not compiled: install the package, which compiles it"
    return f"it was compiled for a CPU with {', '.join(sorted(missing))}" if missing else ""


def _serve(folder: Path, row: dict[str, str]) -> None:
    if row["language"] == "triton":
        function = source_files.load(folder / row["source"], row["function"])
        registry.serve(row["entry"], "cuda", function, compiled=False)
    else:
        entry = cpp.load(folder / row["library"], row["function"])
        registry.serve(row["entry"], "cpu", entry, compiled=True)
