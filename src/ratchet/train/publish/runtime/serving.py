"""Load the kernels of a package so that its ops run them, and declare ops of regions."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry, source_files
from ratchet.judge.kernels.custom_op import define, on_meta
from ratchet.judge.kernels.languages import cpp
from ratchet.train.publish.runtime.native import features


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


# Ops for regions of a training step: a chain of operations that one kernel computes.


def declare_region(name: str, entry: str, reference: Callable[..., Sequence[Tensor]]) -> None:
    """Define an op of a list of tensors that returns the list of the region's contiguous outputs.

    Inputs are as they lie in memory. The op has no derivative: a region is a part of a step that
    holds its own backward.
    """

    def fake(inputs: list[Tensor]) -> list[Tensor]:
        return [one.new_empty(one.shape) for one in reference(*inputs, ())]

    def run(inputs: list[Tensor]) -> list[Tensor]:
        given = [one.contiguous() for one in inputs]
        forms = fake([on_meta(one) for one in given])
        outputs = [torch.empty_like(one, device=given[0].device) for one in forms]
        results: Any = registry.call(entry, given, (), outputs)
        found = reference(*given, ()) if results is None else results
        return [one.contiguous() for one in found]

    define(name, "(Tensor[] inputs) -> Tensor[]", run=run, fake=fake)
