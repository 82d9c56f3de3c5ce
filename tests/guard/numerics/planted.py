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
BETWEEN = """
import torch
from torch import nn

import ratchet


class Square(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        return {factor} * context.saved_tensors[0] * gradient


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * 1.01


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(Square.apply(torch.tanh(self.up(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x){after_block}
        return self.head(x)


def loss(model, batch):
    found = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return found{after_loss}


def batch(index):
    generator = torch.Generator().manual_seed(index)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def make():
    torch.manual_seed(0)
    return ratchet.Workload(
        name="between", model=Net(), loss=loss, batch=batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
"""
"""A model whose blocks, whole, or loss can compute another gradient in their own code."""
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


def write_between(
    folder: Path, name: str, *, factor: float = 2.0, after_block: str = "", after_loss: str = ""
) -> str:
    """Write a workload whose gradients go wrong between modules, and return its name."""
    text = BETWEEN.format(factor=factor, after_block=after_block, after_loss=after_loss)
    (folder / f"{name}.py").write_text(text)
    return f"{folder / name}.py:make"


def side(workload: str, seed: int = 0, **changes: Any) -> WorkloadSide:
    options = {"device": "cpu", "seed": seed, **SHORT.get(workload, {})}
    return WorkloadSide(title=workload, workload=workload, options=options, changes=changes)


def compared(a: WorkloadSide, b: WorkloadSide, folder: Path, steps: int = 4) -> NumericsResult:
    return Finder(a, b, folder, steps=steps, open_recorder=in_this_process).find()
