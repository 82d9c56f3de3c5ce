"""Workloads with an error planted in one layer, and a way to compare them in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ratchet.guard.compare.workloads import WorkloadSide
from ratchet.guard.numerics.find import Finder, NumericsResult
from ratchet.guard.numerics.recorder import NumericsRecorder

SCRIPT = """
import torch

from ratchet.train.workloads.load import load


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * 1.01


class Planted(type(load({spec!r}).model.get_submodule({layer!r}))):
    def forward(self, *arguments, **named):
        right = super().forward
        return {wrong}


def make():
    workload = load({spec!r}, seed={seed}{more})
    workload.model.get_submodule({layer!r}).__class__ = Planted
    return workload
"""
FORWARD = "right(*arguments, **named) * 1.01"
BACKWARD = "right(Wrong.apply(arguments[0]), *arguments[1:], **named)"
LOGARITHM = "torch.log(right(*arguments, **named) - 1e9)"
ONLY_COMPILED = "right(*arguments, **named) * (1.01 if torch.compiler.is_compiling() else 1.0)"
SHORT = {"hf:qwen3": {"batch_size": 2, "sequence": 32}}
"""Options that make a workload small enough for a test."""


class InThisProcess:
    """A recorder without a process of its own."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._recorder = NumericsRecorder(**arguments)

    def call(self, method: str, **arguments: Any) -> Any:
        return getattr(self._recorder, method)(**arguments)


@contextlib.contextmanager
def in_this_process(
    name: str, arguments: Mapping[str, Any], side: WorkloadSide
) -> Iterator[InThisProcess]:
    # Compiled code of an earlier test would be taken as it is, without the hooks of this one.
    torch._dynamo.reset()
    yield InThisProcess(arguments)


def write(folder: Path, name: str, spec: str, layer: str, wrong: str, seed: int = 0) -> str:
    """Write a workload with an error in one layer, and return its name."""
    path = folder / f"{name}.py"
    more = "".join(f", {name}={value}" for name, value in SHORT.get(spec, {}).items())
    path.write_text(SCRIPT.format(spec=spec, layer=layer, wrong=wrong, seed=seed, more=more))
    return f"{path}:make"


def side(workload: str, seed: int = 0, **changes: Any) -> WorkloadSide:
    options = {"device": "cpu", "seed": seed, **SHORT.get(workload, {})}
    return WorkloadSide(title=workload, workload=workload, options=options, changes=changes)


def compared(a: WorkloadSide, b: WorkloadSide, folder: Path, steps: int = 4) -> NumericsResult:
    return Finder(a, b, folder, steps=steps, open_recorder=in_this_process).find()
