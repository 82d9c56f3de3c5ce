"""Programs of torch.export: loaded again they do what the workload's own step does."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ratchet.base.errors import PublishError
from ratchet.train.publish.program import export_workload

TRAIN = """
import random

import torch
from torch import nn

import ratchet


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.linear(self.drop(self.norm(x)))


def batch(index):
    generator = torch.Generator().manual_seed(index)
    return torch.randn(6, 8, generator=generator), torch.arange(6) % 4


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def train_step(model, batch, optimizer):
    found = loss(model, batch)
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found


def make():
    torch.manual_seed(0)
    return ratchet.Workload(name="net", model=Net(), batch=batch, MORE)
"""


ALONE = """
import sys

sys.modules["ratchet"] = None
import torch

for name in ("forward", "step"):
    program = torch.export.load(f"{sys.argv[1]}/{name}.pt2")
    found = program.module()(*program.example_inputs[0])
assert abs(float(found[0]) - float(sys.argv[2])) < 1e-5, found[0]
"""
"""A process that has neither Ratchet nor this one's environment."""


def workload(folder: Path, more: str = "loss=loss, clip_norm=0.1") -> str:
    (folder / "train.py").write_text(TRAIN.replace("MORE", more))
    return f"{folder / 'train.py'}:make"


def test_the_loaded_step_trains_as_the_workload_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = export_workload(workload(tmp_path), {"device": "cpu"}, out)
    assert {"forward.pt2", "step.pt2"} <= {*result.files}
    assert [one.name for one in result.programs] == ["forward", "step"]
    assert all(one.apart < 1e-4 and one.operations > 3 for one in result.programs)
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        assert "run by onnxruntime with the same results" in result.programs[0].onnx
    step = torch.export.load(out / "step.pt2")
    parameters, state, batch = step.example_inputs[0]
    losses = []
    for _ in range(3):  # the outputs are the next call's inputs
        loss, *rest = step.module()(parameters, state, batch)
        parameters, state = rest[: len(parameters)], rest[len(parameters) :]
        losses.append(float(loss))
    assert losses[2] < losses[1] < losses[0]
    command = [sys.executable, "-I", "-c", ALONE, str(out), str(losses[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={})
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(state[-1]) == 3.0
    named = {one.operator for one in result.fallbacks}
    assert all(not one.core_aten or one.onnx is False for one in result.fallbacks), named


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("train_step=train_step", "has a train_step of its own"),
        ("loss=loss, precision='bf16_master'", "give --precision fp32"),
        ("loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)", "trains with SGD"),
        ("loss=lambda m, b: loss(m, b) * random.random()", "random numbers"),
    ],
)
def test_a_step_that_cannot_be_exported_is_one_line(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises(PublishError, match=why):
        export_workload(workload(tmp_path, more), {"device": "cpu"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [one.name for one in tmp_path.iterdir() if "scratch" in one.name] == []
