"""A size that the judge chose convicts nobody: what fails there is tried at the problem's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import Terms
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

PROBLEM = """
import torch

batch = {batch}

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.5

def get_inputs():
    return [torch.randn(batch, 512)]

def get_init_inputs():
    return []
"""
KERNEL = """
import os
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, right = x.shape[0], torch.relu(x) * 0.5
        {body}
"""
LARGE = 2200  # 8 times 275; the judge shrinks it
IN_PARTS = "return (torch.relu(x.view(275, -1)) * 0.5).view(-1, 512)[:rows]"
OTHERS_ARE_WRONG = "return right if rows % int('{rows}') == 0 else right + 1"
OTHERS_END_IT = "return right if rows % int('{rows}') == 0 else os.abort()"
pytestmark = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)


@pytest.fixture(autouse=True)
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests ask for answers, not for speed."""
    for name, value in (("LAUNCHES", 1), ("MIN_LAUNCHES", 1), ("MIN_ROUNDS", 2), ("MAX_ROUNDS", 2)):
        monkeypatch.setattr(plan, name, value)


def problem_of(folder: Path, judge: KernelJudge, batch: int) -> Problem:
    path = folder / "halved.py"
    path.write_text(PROBLEM.format(batch=batch))
    return as_problem(path, Terms(), describe=judge.describe)


def judged(judge: KernelJudge, asked: Problem, body: str) -> Verdict:
    source = KERNEL.format(body=body)
    kernel = Kernel(name="test", language="torch", source=source, entry="ModelNew")
    return judge.judge(kernel, asked, time_limit_s=60)


@pytest.mark.parametrize("body", [IN_PARTS, OTHERS_ARE_WRONG.format(rows=275)])
def test_what_fails_on_shrunk_sizes_is_tried_at_the_problems_own(
    body: str, judge: KernelJudge, tmp_path: Path
) -> None:
    asked = problem_of(tmp_path, judge, LARGE)
    assert asked.model is not None and asked.model.shrunk
    verdict = judged(judge, asked, body)
    assert_right(verdict)
    assert "smaller sizes that the judge chose" in verdict.not_timed
    assert "--scale 1" in verdict.reason
    assert verdict.problem_hash == asked.hash and not verdict.samples
    (tried,) = [one for one in verdict.evidence if "at sizes that the judge chose" in one.detail]
    assert f"batch {LARGE} to " in tried.detail and tried.passed is None
    assert all(one.passed is not False for one in verdict.evidence)


def test_what_fails_at_the_problems_own_sizes_too_is_wrong(
    judge: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(judge, problem_of(tmp_path, judge, LARGE), "return right + 1")
    assert verdict.status == "wrong"
    assert "shrunk" not in verdict.reason and "given" in verdict.reason


def test_where_the_problems_own_sizes_do_not_fit_nothing_is_known(
    judge: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(judge, problem_of(tmp_path, judge, 1 << 20), "return right + 1")
    assert verdict.status == "unmeasured"
    assert "the problem's own do not fit here: " in verdict.reason
    assert f"batch {1 << 20} to " in verdict.reason


@pytest.mark.parametrize("body", [OTHERS_ARE_WRONG, OTHERS_END_IT])
def test_other_rows_than_a_models_file_has_are_held_against_no_kernel(
    body: str, judge: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(judge, problem_of(tmp_path, judge, 16), body.format(rows=16))
    assert_right(verdict)
    (rows,) = [one for one in verdict.evidence if one.check == "correct on fewer rows"]
    assert rows.passed is None
    assert "it takes the sizes of the problem's file alone" in rows.detail


def _compiler() -> bool:
    try:
        cpp.find_compiler()
    except CompilerMissing:
        return False
    return True


OF_ONE_SIZE = """
#include <cstdint>
struct tensor { void* data; int64_t dtype, ndim, size[6], stride[6]; };
extern "C" int64_t halved(const tensor* t, int64_t, const double*, int64_t) {
    const float* x = (const float*)t[0].data;
    float* y = (float*)t[1].data;
    for (int64_t i = 0; i < 4096LL * 512; ++i) y[i] = x[i] > 0 ? 0.5f * x[i] : 0.0f;
    return 0;
}
"""


@pytest.mark.compiler
@pytest.mark.skipif(not _compiler(), reason="needs a C++ compiler")
def test_a_compiled_kernel_of_one_size_may_end_its_process_on_others(
    judge: KernelJudge, tmp_path: Path
) -> None:
    """It writes behind the rows of a smaller case."""
    path = tmp_path / "halved.cpp"
    path.write_text(OF_ONE_SIZE.replace("4096LL", "512LL"))
    asked = problem_of(tmp_path, judge, 512)
    verdict = judge.judge(as_kernel(path, asked), asked, time_limit_s=60)
    assert_right(verdict)
    (rows,) = [one for one in verdict.evidence if one.check == "correct on fewer rows"]
    assert rows.passed is None
