"""Kernels that need a GPU, told by their text."""

from __future__ import annotations

import pytest

from ratchet.judge.kernels.cuda_use import needs_cuda, refuses_cores

FILE = """
import torch
from torch import nn
{top}
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {body}
        return x
{after}
"""


def told(top: str = "", init: str = "pass", body: str = "pass", after: str = "") -> str:
    return needs_cuda(FILE.format(top=top, init=init, body=body, after=after), "ModelNew")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"body": "x = x.cuda()"}, "`.cuda()` at line 11"),
        ({"init": "self.a = torch.ones(3, device='cuda')"}, "`'cuda'` at line 8"),
        ({"body": "x = x.to('cuda:0')"}, "`'cuda:0'` at line 11"),
        ({"body": "x = x.to(torch.device('cuda'))"}, "`'cuda'`"),
        ({"top": "DEVICE = 'cuda'", "body": "x = x.to(DEVICE)"}, "`DEVICE`"),
        ({"init": "self.d = 'cuda'", "body": "x = x.to(self.d)"}, "`self.d`"),
        ({"body": "torch.cuda.synchronize()"}, "`torch.cuda.synchronize()`"),
        ({"init": "self.s = torch.cuda.Stream()"}, "`torch.cuda.Stream()`"),
        ({"top": "m = load_inline(name='a', cuda_sources=[S])"}, "`load_inline(cuda_sources=...)`"),
        ({"top": "def f(x): return x.cuda()", "body": "x = f(x)"}, "`.cuda()` at line 4"),
        ({"body": "assert x.is_cuda, 'on the GPU'"}, "`assert x.is_cuda, 'on the GPU'` at line 11"),
        ({"body": "assert x.dim() == 2 and x.is_cuda"}, "x.is_cuda` at line 11"),
        ({"body": "if not x.is_cuda: raise ValueError"}, "`if not x.is_cuda:` at line 11"),
    ],
)
def test_what_needs_a_gpu_is_told_with_its_line(parts: dict[str, str], words: str) -> None:
    found = told(**parts)
    assert words in found
    assert found.endswith("port it (`ratchet port`) or emulate it (`--target gfx942`)")


@pytest.mark.parametrize(
    "parts",
    [
        {"init": "self.d = 'cuda' if torch.cuda.is_available() else 'cpu'"},
        {"body": "x = x.cuda() if x.is_cuda else x"},
        {"body": "if x.device.type == 'cuda': x = x.cuda()"},
        {"body": "assert x.is_cuda or x.is_cpu"},
        {"body": "assert not x.is_cuda"},
        {"body": "if not x.is_cuda: x = x + 0"},
        {"body": "with torch.autocast('cuda', enabled=False): x = x + 1"},
        {"top": "m = load_inline(name='a', cpp_sources=S, cuda_sources='')"},
        {"after": "def get_inputs():\n    return [torch.ones(3).cuda()]"},
        {"after": "if __name__ == '__main__':\n    ModelNew().cuda()"},
        {"top": "DEVICE = 'cuda'", "after": "def test():\n    ModelNew().to(DEVICE)"},
    ],
)
def test_what_runs_without_one_is_not_held_against_it(parts: dict[str, str]) -> None:
    assert told(**parts) == ""


def test_triton_is_asked_for_demands_alone() -> None:
    text = "def f(x):\n    assert x.is_cuda\n    return g(x)\ndef g(x):\n    return x.cuda()\n"
    assert "`assert x.is_cuda` at line 2" in refuses_cores(text, "f")
    assert refuses_cores(text, "g") == ""
