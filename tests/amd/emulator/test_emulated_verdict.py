"""Verdicts on Triton kernels by the machine code of GPUs that are not here."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.base.errors import RatchetError
from ratchet.judge.api import as_problem
from ratchet.judge.court.calls import judge as judge_by_name
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.kernels.library import kernels_for
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.terms import Terms
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels

KERNEL = kernels_for("gpu")["rope_forward"]

SQUARES = """
import torch
import triton
import triton.language as tl

@triton.jit
def squares(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = at < LENGTH
    value = tl.maximum(tl.load(x + at, kept, 0.0).to(tl.float32), 0.0)
    tl.store(y + at, (value * value).to(y.dtype.element_ty), kept)

def squared_relu(x, scalars):
    x = x.contiguous()
    y = torch.empty_like(x)
    squares[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return (y,)
"""
"""LENGTH is the number of elements, or a promise about it that no odd size keeps."""


def changed(old: str, new: str) -> Kernel:
    assert KERNEL.source.count(old) == 1
    return replace(KERNEL, source=KERNEL.source.replace(old, new))


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


def test_the_targets_are_the_amd_architectures() -> None:
    assert tuple(n for n, one in ARCHITECTURES.items() if one.backend == "hip") == TARGETS


def test_an_unknown_target_is_a_mistake_in_the_call() -> None:
    with pytest.raises(RatchetError, match="unknown target 'gfx1030': use one of gfx90a, gfx942"):
        judge_by_name(KERNEL, "rope_forward", target="gfx1030")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return find_problem("rope_forward").at("ci")


@needs_triton
@needs_sandbox
@pytest.mark.slow
class TestVerdicts:
    def test_a_right_kernel_is_correct_and_never_proven(
        self, court: KernelJudge, problem: Problem
    ) -> None:
        verdict = court.judge(KERNEL, problem, target="gfx942", profiled=("gfx942",))
        assert verdict.status == "correct", verdict.reason
        assert verdict.static is not None
        assert verdict.static["targets"]["gfx942"]["kernels"][0]["name"] == "rope_kernel"
        assert "as machine code of gfx942, emulated" in verdict.reason
        assert "emulated" in [one.check for one in verdict.evidence]
        assert verdict.samples == []

    @pytest.mark.parametrize(
        ("target", "devices"),
        [
            ("gfx90a", {"MI210", "MI250X"}),
            ("gfx942", {"MI300X", "MI325X"}),
            ("gfx1100", {"RX 7900 XTX"}),
            ("gfx1201", {"RX 9070 XT"}),
        ],
    )
    def test_it_says_what_was_counted_and_the_bound_that_follows(
        self, court: KernelJudge, problem: Problem, target: str, devices: set[str]
    ) -> None:
        verdict = court.judge(KERNEL, problem, target=target)
        visible = [one.name for one in problem.cases if not one.hidden]
        assert [one.case for one in verdict.emulated] == visible
        for case in verdict.emulated:
            (kernel,) = case.kernels
            assert (kernel.name, kernel.launches) == ("rope_kernel", 1)
            assert 0 < kernel.touched_bytes <= 64 * kernel.lines_64
            assert {one.device for one in case.bounds} >= devices
            for bound in case.bounds:
                parts = (bound.memory_s, bound.matrix_s, bound.vector_s, bound.lds_s)
                assert bound.time_s == max(parts) > 0
            assert case.predicted is not None and case.predicted.device == case.bounds[0].device
            assert 0 < case.predicted.low_s < case.predicted.time_s < case.predicted.high_s
        assert any(
            "at least" in one.detail and "predicted" in one.detail for one in verdict.evidence
        )

    def test_a_read_of_what_nobody_wrote_is_wrong(
        self, court: KernelJudge, problem: Problem
    ) -> None:
        read = "0 * tl.load(target + (row * y_row + at), kept, 0.0)"
        unwritten = changed("turned_first.to(", f"(turned_first + {read}).to(")
        verdict = court.judge(unwritten, problem, target="gfx942")
        assert verdict.status == "wrong", verdict.reason

    @pytest.mark.parametrize(("hinted", "status"), [(False, "correct"), (True, "wrong")])
    def test_a_hint_that_is_false_is_found(
        self, court: KernelJudge, hinted: bool, status: str
    ) -> None:
        length = "tl.maximum(n, tl.program_id(0) - 1)"
        source = SQUARES.replace("LENGTH", f"tl.multiple_of({length}, 16)" if hinted else length)
        kernel = Kernel(name="squares", language="triton", source=source, entry="squared_relu")
        verdict = court.judge(kernel, find_problem("squared_relu").at("ci"), target="gfx942")
        assert verdict.status == status, verdict.reason
        assert not hinted or "out of bounds at line " in verdict.reason

    def test_a_wrong_kernel_is_wrong(self, court: KernelJudge, problem: Problem) -> None:
        verdict = court.judge(changed("+ first * sin", "- first * sin"), problem, target="gfx950")
        assert verdict.status == "wrong", verdict.reason

    def test_an_access_outside_of_a_tensor_names_its_line(
        self, court: KernelJudge, problem: Problem
    ) -> None:
        away = changed("start * x_row\n", "start * x_row + (1 << 27)\n")
        verdict = court.judge(away, problem, target="gfx942")
        assert verdict.status == "wrong", verdict.reason
        assert re.search(r"out of bounds at line \d+ of rope_kernel", verdict.reason)
        assert "lies in no tensor" in verdict.reason

    def test_a_kernel_in_another_language_is_not_emulated(
        self, court: KernelJudge, problem: Problem
    ) -> None:
        kernel = replace(KERNEL, language="torch")
        verdict = court.judge(kernel, problem, target="gfx942")
        assert verdict.status == "unmeasured"
        assert "kernels in torch are not emulated" in verdict.reason


LARGE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.5

def get_inputs():
    return [torch.randn(1125, 512)]

def get_init_inputs():
    return []
"""
OF_ITS_SIZES = """
import torch
import triton
import triton.language as tl

@triton.jit
def halved(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at), FLOOR) * 0.5)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert x.shape[0] % int("1125") == 0
        y = torch.empty_like(x)
        halved[(x.numel() // 512,)](x, y, BLOCK=512)
        return y
"""


@needs_triton
@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("floor", "status"),
    [("0.0", "correct"), pytest.param("1.0", "wrong", marks=pytest.mark.thorough)],
)
def test_what_fails_on_a_shrunk_problem_is_emulated_at_its_own_sizes(
    floor: str, status: str, court: KernelJudge, tmp_path: Path
) -> None:
    path = tmp_path / "halved.py"
    path.write_text(LARGE)
    asked = as_problem(path, Terms(scale="emulated"), describe=court.describe)
    assert asked.model is not None and asked.model.shrunk
    source = OF_ITS_SIZES.replace("FLOOR", floor)
    kernel = Kernel(name="halved", language="triton", source=source, entry="ModelNew")
    verdict = court.judge(kernel, asked, target="gfx942")
    assert verdict.status == status, verdict.reason
    assert ("at the problem's own sizes" in verdict.reason) == (status == "correct")
    assert "at sizes that the judge chose" in verdict.evidence[0].detail
