"""Triton kernels before the judge on a machine without a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import static_kernels as given
import torch

from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

THOROUGH = (pytest.mark.thorough,)
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: nothing is interpreted"),
    pytest.mark.skipif(
        why_no_kernels() is not None,
        reason="no kernel can be tried on this machine",
    ),
]


def verdict_on(judge: KernelJudge, name: str, body: str) -> Verdict:
    kernel = given.triton_kernel(name, body)
    return judge.judge(kernel, given.problem(name), time_limit_s=300.0)


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "attention",
        *(pytest.param(name, marks=THOROUGH) for name in ("add", "rms_norm", "matmul")),
    ],
)
def test_a_right_kernel_is_correct_and_never_proven(judge: KernelJudge, name: str) -> None:
    asked = replace(given.problem(name), task="own")  # by its own work, even
    kernel = given.triton_kernel(name, given.KERNELS[name])
    verdict = judge.judge(kernel, asked, time_limit_s=300.0)
    assert verdict.status == "correct", verdict.reason
    assert "speed was not measured" in verdict.reason
    assert verdict.speedup.vs_reference is None
    checks = [entry.check for entry in verdict.evidence if entry.passed]
    own = ["own work, operations on small", "own work"]
    assert checks == ["problem gate", "correct on small", "repeatability", *own]


@pytest.mark.usefixtures("profiled")
def test_a_verdict_carries_the_profile_of_every_target(judge: KernelJudge) -> None:
    verdict = verdict_on(judge, "add", given.ADD)
    assert verdict.static is not None
    assert list(verdict.static["targets"]) == list(TARGETS)
    for found in verdict.static["targets"].values():
        assert found["error"] is None
        assert found["kernels"][0]["vgprs"] > 0
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.load(x + at, keep) + tl", "1.01 * tl.load(x + at, keep) + tl"),
        pytest.param("at < n", "at < n - 1", marks=THOROUGH),
        pytest.param("return (out,)", "return (torch.zeros_like(x),)", marks=THOROUGH),
    ],
)
def test_a_wrong_kernel_is_wrong(judge: KernelJudge, old: str, new: str) -> None:
    verdict = verdict_on(judge, "add", given.ADD.replace(old, new))
    assert verdict.status == "wrong", verdict.reason


def test_what_the_interpreter_cannot_do_is_not_held_against_a_kernel(judge: KernelJudge) -> None:
    body = given.ADD.replace(
        "tl.load(x + at, keep) + tl.load(y + at, keep)",
        "tl.inline_asm_elementwise('v_add_f32 $0, $1, $2', '=v,v,v', "
        "[tl.load(x + at, keep), tl.load(y + at, keep)], tl.float32, True, 1)",
    )
    verdict = verdict_on(judge, "add", body)
    assert verdict.status == "unmeasured", verdict.reason
    assert "inline_asm not supported in interpreter mode" in verdict.reason


def test_a_kernel_that_raises_has_crashed(judge: KernelJudge) -> None:
    verdict = verdict_on(judge, "add", given.ADD.replace("return (out,)", "raise ValueError('no')"))
    assert verdict.status == "crashed", verdict.reason
    assert "no" in verdict.reason


def test_a_source_that_does_not_load_is_refused(judge: KernelJudge) -> None:
    verdict = verdict_on(judge, "add", "def other(): pass\n")
    assert verdict.status == "refused", verdict.reason
    assert "defines no function 'add'" in verdict.reason


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.w

def get_inputs():
    return [torch.randn(40, 300)]

def get_init_inputs():
    return [300]
"""
ANSWER = """
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return rms_norm(x, self.w, (1e-5,))[0]
"""


@pytest.mark.usefixtures("profiled")
def test_a_model_in_kernelbench_s_format_has_a_verdict_and_a_profile(
    judge: KernelJudge, tmp_path: Path
) -> None:
    (tmp_path / "problem.py").write_text(MODEL)
    (tmp_path / "answer.py").write_text(given.HEAD + given.RMS_NORM + ANSWER)
    problem, kernel = load_problem(tmp_path / "problem.py"), load_kernel(tmp_path / "answer.py")
    assert (kernel.language, kernel.entry) == ("triton", "ModelNew")
    verdict = judge.judge(kernel, problem, time_limit_s=300.0)
    assert verdict.status == "correct", verdict.reason
    assert verdict.static is not None
    for found in verdict.static["targets"].values():
        assert found["error"] is None
        assert found["kernels"][0]["grid"] == [40, 1, 1]
