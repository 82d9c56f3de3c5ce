"""int8 and fp8 before the judge: right kernels are right, and wrong codes are wrong."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import low_precision_kernels as given
import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel, with_modules
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import reference_text
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels

python_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


@pytest.fixture(autouse=True)
def short(few_rounds: None) -> None:
    """These tests ask for answers, not for speed."""


@pytest.fixture
def compiler() -> None:
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))


@pytest.mark.compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", given.SOURCES)
def test_an_honest_kernel_is_right_and_a_wrong_one_is_wrong(judge: KernelJudge, name: str) -> None:
    problem = find_problem(name).at("ci")
    verdict = judge.judge(given.honest(name), problem)
    assert_right(verdict)
    verdict = judge.judge(given.wrong(name), problem)
    assert verdict.status == "wrong", verdict.reason


NEW = (
    "quantise_rows",
    "quantise_groups",
    "dequantise_rows",
    "dequantise_rows_backward",
    "dequantise_groups",
    "fake_quantise",
    "fake_quantise_backward",
    "quantise_fp8",
    "quantise_fp8_gradient",
    "quantise_fp8_blocks",
    "dequantise_fp8",
    "dequantise_fp8_blocks",
    "dequantise_fp8_weight",
    "adam_8_bit",
    "embedding_bag_backward",
    "permute_tokens_backward",
    "linear_residual_backward",
    "grouped_linear_backward",
    "segment_sum_backward",
    "discounted_returns_backward",
)
USUAL = ("quantise_fp8_blocks", "embedding_bag_backward")


@python_sandbox
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in USUAL else (pytest.mark.thorough,)) for name in NEW],
)
def test_the_reference_answers_its_own_problem(judge: KernelJudge, name: str) -> None:
    problem = replace(find_problem(name).at("ci"), task="any")
    verdict = judge.judge(built_in_kernel(problem, "eager"), problem)
    assert_right(verdict)


@python_sandbox
def test_codes_that_are_one_off_are_wrong_where_they_are_many(judge: KernelJudge) -> None:
    problem = replace(find_problem("quantise_fp8").at("ci"), task="any")
    source = with_modules(reference_text(problem.reference)) + (
        "\n\ndef off(x, scale, scalars):\n"
        "    codes, amax = quantise_fp8(x, scale, scalars)\n"
        "    bits = codes.view(torch.uint8).clone()\n"
        "    bits.view(-1)[::100] ^= 1\n"
        "    return bits.view(E4M3), amax\n"
    )
    kernel = Kernel(name="off", language="torch", source=source, entry="off")
    verdict = judge.judge(kernel, problem)
    assert verdict.status == "wrong", verdict.reason
    assert "codes are not the nearest" in verdict.reason


@python_sandbox
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", given.TRITON)
def test_triton_s_interpreter_takes_them(judge: KernelJudge, name: str) -> None:
    problem = find_problem(name).at("ci")
    verdict = judge.judge(given.in_triton(name), problem, time_limit_s=90.0)
    assert_right(verdict)
