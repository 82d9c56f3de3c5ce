"""Honest kernels: other orders, widths, threads and precisions of the same work are all right.

A sample of what `benchmarks/judge/judge_honest.py` judges five times.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import kernels_for
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks" / "judge"
sys.path.append(str(BENCHMARKS))  # the reference worker looks its problems up there too

import honest_backwards_torch  # noqa: E402
import honest_kernels  # noqa: E402

pytestmark = pytest.mark.compiler
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
COMPILED, TEXTBOOK, IN_PYTHON = (22, 11, 3) if EVERYTHING else (2, 1, 1)
MANY = 200
FALSELY_WRONG = (" softmax_backward", "smoothed_cross_entropy_backward", "attention_alibi_backward")
"""Found by being called wrong: the bound knew the reference's own loss alone."""


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def short(few_rounds: None) -> None:
    """These tests ask for answers, not for speed."""


def spread(kernels: list[honest_kernels.Honest], count: int) -> list[honest_kernels.Honest]:
    """Some of the kernels, evenly from the first to the last."""
    return [kernels[place * len(kernels) // count] for place in range(count)]


@cache
def compiled() -> list[honest_kernels.Honest]:
    return honest_kernels.honest_kernels(with_python=False)


def textbook() -> list[honest_kernels.Honest]:
    return [one for one in compiled() if one.name.startswith("textbook")]


def named(honest: honest_kernels.Honest) -> str:
    return honest.name


def backwards() -> list[honest_kernels.Honest]:
    found = [one for one in compiled() if one.name.startswith("backward, ")]
    return found if EVERYTHING else [one for one in found if one.name.endswith(FALSELY_WRONG)]


def test_there_are_many() -> None:
    assert len(compiled()) >= MANY
    everything = [one.name for one in honest_kernels.honest_kernels()]
    assert len(set(everything)) == len(everything)
    by_hand = [name for name in everything if name.startswith("backward")]
    assert len(by_hand) >= 80
    in_triton = {name for name in everything if name.startswith("triton: ")}
    if importlib.util.find_spec("triton") is not None:
        assert in_triton == {f"triton: {entry}" for entry in kernels_for("gpu")}
    assert len({one.name for one in compiled()}) == len(compiled())


@pytest.mark.parametrize("honest", spread(compiled(), COMPILED), ids=named)
def test_an_honest_kernel_is_right(judge: KernelJudge, honest: honest_kernels.Honest) -> None:
    verdict = judge.judge(honest.kernel, honest.problem)
    assert_right(verdict)


@pytest.mark.parametrize("honest", backwards(), ids=named)
def test_a_backward_by_hand_is_right(judge: KernelJudge, honest: honest_kernels.Honest) -> None:
    verdict = judge.judge(honest.kernel, honest.problem)
    assert_right(verdict)


@pytest.mark.parametrize("honest", spread(textbook(), TEXTBOOK), ids=named)
def test_a_textbook_s_sums_are_right(judge: KernelJudge, honest: honest_kernels.Honest) -> None:
    verdict = judge.judge(honest.kernel, honest.problem)
    assert_right(verdict)


@pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)
@pytest.mark.parametrize(
    "honest",
    [
        *spread(list(honest_kernels._references()), IN_PYTHON),
        *spread(list(honest_backwards_torch.kernels()), IN_PYTHON),
    ],
    ids=named,
)
def test_a_reference_or_a_formula_answers_its_problem(
    judge: KernelJudge, honest: honest_kernels.Honest
) -> None:
    verdict = judge.judge(honest.kernel, honest.problem)
    assert_right(verdict)
