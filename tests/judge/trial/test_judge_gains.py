"""A control: what really is far faster is proven, by as few rounds as other tests ask for."""

from __future__ import annotations

import judge_problems as given
import pytest

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("gains_are_seen", "compiler")]
TRIES = 3
"""Machines may be busy."""


@pytest.fixture
def compiler() -> None:
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))


def wasteful() -> Problem:
    """Its reference does the work a hundred times over."""
    cases = (given.case("timed", 64, 512, timed=True), given.case("hidden", 3, 5, 7, hidden=True))
    return given.problem("wasteful_silu", *cases)


def test_what_is_far_faster_is_proven(judge: KernelJudge) -> None:
    for _ in range(TRIES):
        verdict = judge.judge(given.cpp(given.HONEST), wasteful())
        if verdict.status == "proven":
            break
    assert verdict.status == "proven", verdict.reason
    assert verdict.speedup.vs_reference is not None
    assert verdict.speedup.vs_reference.low > 1


def test_what_wastes_more_is_not(judge: KernelJudge) -> None:
    body = """
    ENTRY {
        int64_t code = 0;
        for (int i = 0; i < 300; ++i) { code = silu_scale(t, s); asm volatile("" ::: "memory"); }
        return code;
    }"""
    verdict = judge.judge(given.cpp(body), wasteful())
    assert verdict.status == "correct", verdict.reason
