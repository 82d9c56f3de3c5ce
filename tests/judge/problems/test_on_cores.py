"""Files that ask for cuda, on the machine's cores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ratchet.judge.problems.model_file import model_of, on_cores
from ratchet.judge.problems.model_problem import model_problem

TEXT = """
import torch
import torch.nn as nn
START = torch.zeros(3, device="cuda:0")

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width, device="cuda").cuda()
        self.register_buffer("mask", torch.ones(width, device=torch.device("cuda")))

    def forward(self, x):
        return self.inner(x.to("cuda")) * self.mask + torch.arange(4.0, device="cuda")

def get_inputs():
    return [torch.rand(6, 4, device="cuda").cuda()]

def get_init_inputs():
    return [4]
"""


def test_a_file_for_a_gpu_is_a_problem_here() -> None:
    problem = model_problem(TEXT, "for_a_gpu", scale=None, threads=1)
    assert problem.notes == ("tensors that its file creates on cuda are on the CPU",)
    assert problem.model is not None
    file = model_of(problem.text, problem.model)
    tensors = file.draw(problem.cases[0], 3)
    assert {one.device.type for one in tensors} == {"cpu"}
    if not torch.cuda.is_available():
        (out,) = file.reference(*tensors, ())
        assert out.shape == (6, 4)


def test_nothing_else_is_touched() -> None:
    with on_cores("no device is named"):
        assert torch.zeros(2, device="meta").device.type == "meta"
    with on_cores("cuda"):
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert torch.zeros(2).to("cuda", torch.float64).dtype == torch.float64
        assert torch.zeros(2).to(device="cuda:1").device.type == "cpu"
        assert nn.Linear(2, 2).cuda().weight.device.type == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to be asked")
def test_it_ends_with_the_block() -> None:
    with on_cores("cuda"):
        pass
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
