"""What a KernelBench file's `get_inputs` gives: tensors, or a line that says what to give."""

from __future__ import annotations

import pytest

from ratchet.base.errors import KernelError
from ratchet.judge.problems.model_problem import model_problem

MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return {inputs}

def get_init_inputs():
    return {init}
"""
NONE = "its get_inputs gives no tensor: return a list of those"
BAD = {
    "[]": NONE,
    "[3]": NONE,
    "['a']": NONE,
    "[None]": NONE,
    "[float('inf')]": "only tensors and plain values",
    "[[torch.ones(2)]]": "give each tensor as an input of its own",
    "[object()]": "only tensors and plain values",
    "5": "its get_inputs gives int, no list",
    "None": "its get_inputs gives NoneType, no list",
    "torch.ones(8, 8)": "its get_inputs gives Tensor, no list",
    "{'x': torch.ones(8, 8)}": "its get_inputs gives dict, no list",
    "[torch.ones(8, 8).to_sparse()]": "a sparse tensor cannot be passed",
    "[torch.ones(8, 8, device='meta')]": "a tensor lies on meta",
    "[torch.ones(8, 8, dtype=torch.complex64)]": "a tensor of complex64 cannot be passed",
}


@pytest.mark.parametrize("inputs", BAD)
def test_inputs_that_no_kernel_can_take(inputs: str) -> None:
    with pytest.raises(KernelError) as told:
        model_problem(MODEL.format(inputs=inputs, init="[]"), "p", scale=None, threads=1)
    assert BAD[inputs] in str(told.value)


def test_arguments_of_the_model_are_a_list() -> None:
    text = MODEL.format(inputs="[torch.ones(8, 8)]", init="7")
    with pytest.raises(KernelError, match="its get_init_inputs gives int, no list"):
        model_problem(text, "p", scale=None, threads=1)


def test_a_generator_of_inputs_is_taken() -> None:
    text = MODEL.format(inputs="(torch.rand(8, 8) for _ in range(1))", init="()")
    assert model_problem(text, "p", scale=None, threads=1).cases
