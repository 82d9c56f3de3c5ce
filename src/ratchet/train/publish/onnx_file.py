"""ONNX beside an exported program, where `onnx` and `onnxscript` are installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram

from ratchet.base.errors import PublishError
from ratchet.train.publish.export_result import INSTALL


def can_translate() -> bool:
    """Return whether torch's exporter to ONNX can run."""
    return find_spec("onnx") is not None and find_spec("onnxscript") is not None


def write_onnx(
    program: ExportedProgram, path: Path, wanted: Sequence[Tensor], tolerance: float
) -> str:
    """Write a program as ONNX and run it in onnxruntime; return what was done, in words.

    Raises:
        PublishError: onnxruntime gives other results than the program.
    """
    if not can_translate():
        return f"not written: {INSTALL}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False)
            made.save(str(path))  # type: ignore[union-attr]
        except Exception as error:
            return f"not written: {_why(program, error)}"
        if find_spec("onnxruntime") is None:
            return f"{path.name}, not run: {INSTALL}"
        found = _run(path, program)
    for one, other in zip(found, wanted, strict=True):
        apart = (one.double() - other.double()).norm()
        if not float(apart) <= tolerance * max(float(other.double().norm()), 1e-6):
            raise PublishError(f"{path.name} gives other results in onnxruntime than in torch")
    return f"{path.name}, run by onnxruntime with the same results"


def untranslated(operators: Iterable[OpOverload]) -> set[OpOverload] | None:
    """Return the operators that torch's exporter to ONNX does not know; None if it is missing."""
    if not can_translate():
        return None
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    known = ONNXRegistry.from_torchlib()
    return {one for one in set(operators) if not known.is_registered(one)}


def _why(program: ExportedProgram, error: Exception) -> str:
    """Return the operators that the exporter lacks, else the last words of its error."""
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    missing = untranslated([one for one in called if isinstance(one, torch._ops.OpOverload)])
    if missing:
        return f"ONNX lacks {', '.join(sorted(map(str, missing)))}"
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:120]


def _run(path: Path, program: ExportedProgram) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = [one for one in torch.utils._pytree.tree_leaves(program.example_inputs)]
    names = [one.name for one in session.get_inputs()]
    tensors = [one for one in given if isinstance(one, Tensor)]
    feeds = {name: one.detach().numpy() for name, one in zip(names, tensors, strict=True)}
    return [torch.as_tensor(one) for one in session.run(None, feeds)]
