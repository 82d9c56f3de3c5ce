"""A hidden case with a long sum: where an accumulator in half precision shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import assert_right

from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.references import LENGTH, LONG_SUM, STATED_SUM, with_long_sum
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

TEXT = """
import torch
from ratchet import Case, Problem, TensorSpec

def product(a, b, scalars):
    return (a @ b,)

def turned(a, b, scalars):
    return (torch.einsum("mk,nk->mn", a, b),)

def scores(q, k, v, scalars):
    return (torch.softmax(q @ k.transpose(-1, -2), -1) @ v,)

def added(a, b, scalars):
    return (a + b,)

PROBLEM = Problem(name="blocks", reference="product", cases=(Case(name="own", timed=True, inputs=(
    TensorSpec(shape=(16, 64), dtype="float16"), TensorSpec(shape=(64, 24), dtype="float16"))),))
"""
KERNEL = """
import torch

def blocks(a, b, scalars):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.{dtype})
    for k in range(0, {length}, 32):
        total = total + (a[:, k : k + 32].float() @ b[k : k + 32].float()).to(torch.{dtype})
    return (total.half(),)
"""
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)


def grown(
    reference: str, *shapes: tuple[int, ...], dtype: str = "float16"
) -> list[tuple[int, ...]]:
    """Return the shapes of the case that a problem gets, or []."""
    inputs = tuple(TensorSpec(shape=one, dtype=dtype) for one in shapes)
    case = Case(name="own", inputs=inputs, timed=True)
    problem = with_long_sum(Problem(name="p", reference=reference, cases=(case,), text=TEXT))
    return [spec.shape for one in problem.cases if one.grown for spec in one.inputs]


def test_the_dimension_that_is_summed_over_grows() -> None:
    assert grown("product", (8, 16), (16, 12)) == [(8, LENGTH), (LENGTH, 12)]
    assert grown("product", (16, 16), (16, 16)) == [(16, LENGTH), (LENGTH, 16)]
    assert grown("turned", (8, 48), (12, 48)) == [(8, 4128), (12, 4128)]  # a multiple of 48
    assert grown("scores", (2, 8, 16), (2, 24, 16), (2, 24, 6))[0] == (2, 8, LENGTH)


def test_a_problem_without_such_a_sum_stays_as_it_is() -> None:
    assert grown("added", (8, 16), (8, 16)) == []
    assert grown("product", (8, 16), (16, 12), dtype="float32") == []
    assert grown("product", (8, LENGTH), (LENGTH, 12)) == []
    assert grown("product", (8, 16), (17, 12)) == []  # the reference itself rejects these


LARGER = """, Case(name="large", timed=True, tier="gpu", inputs=(
    TensorSpec(shape=(16, 4096), dtype="float16"), TensorSpec(shape=(4096, 24), dtype="float16")))))
"""


def judged(
    court: KernelJudge, folder: Path, *, dtype: str, length: str, larger: bool = False
) -> Verdict:
    problem, kernel = folder / "problem.py", folder / "kernel.py"
    text = TEXT.replace('name="own", timed=True', 'name="own", tier="ci", timed=True')
    end = "),))\n"
    assert text.endswith(end)
    problem.write_text(text.removesuffix(end) + ")" + LARGER if larger else TEXT)
    kernel.write_text(KERNEL.format(dtype=dtype, length=length))
    asked = as_problem(problem, describe=court.describe)
    if larger:
        asked = asked.at("ci")
    return court.judge(as_kernel(kernel, asked), asked)


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_an_accumulator_in_half_precision_is_wrong_where_the_problem_has_long_sums(
    court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, dtype="float16", length="a.shape[1]", larger=True)
    assert verdict.status == "wrong"
    assert verdict.reason.startswith(f"case {STATED_SUM}: ")


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_a_length_that_the_judge_chose_convicts_nobody(court: KernelJudge, tmp_path: Path) -> None:
    verdict = judged(court, tmp_path, dtype="float16", length="a.shape[1]")
    assert_right(verdict)
    assert f"in sums as long as {LENGTH} it loses more" in verdict.reason
    (found,) = [one for one in verdict.evidence if one.check == f"correct on {LONG_SUM}"]
    assert found.passed is None


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("length", ["a.shape[1]", pytest.param("64", marks=pytest.mark.thorough)])
def test_a_wide_one_is_right_and_need_not_take_the_length(
    length: str, court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, dtype="float32", length=length)
    assert_right(verdict)
    (found,) = [one for one in verdict.evidence if one.check == f"correct on {LONG_SUM}"]
    assert found.passed is (None if length == "64" else True)


ENDS = """
import os
import torch

def blocks(a, b, scalars):
    return (a @ b,) if a.shape[1] == 64 else os.abort()
"""


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_a_length_that_ends_the_process_is_none_that_it_must_take(
    court: KernelJudge, tmp_path: Path
) -> None:
    problem, kernel = tmp_path / "problem.py", tmp_path / "kernel.py"
    problem.write_text(TEXT)
    kernel.write_text(ENDS)
    asked = as_problem(problem, describe=court.describe)
    verdict = court.judge(as_kernel(kernel, asked), asked)
    assert_right(verdict)
    (found,) = [one for one in verdict.evidence if one.check == f"correct on {LONG_SUM}"]
    assert found.passed is None
