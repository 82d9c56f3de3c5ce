"""Kernels of the kinds that tutorials show are right on the emulator, and their mistakes found."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import pytest
from tutorial_kernels import SOURCES, tutorial_kernel, tutorial_problem

from ratchet.judge.problems.case import Case
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(
        why_no_kernels() is not None,
        reason="no kernel can be tried on this machine",
    ),
]
QUICK = ("layer_norm_backward",)
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"


def few_rows(case: Case) -> Case:
    """Fewer rows, yet several behind each lock."""
    inputs = (
        replace(one, shape=(9, *one.shape[1:])) if len(one.shape) == 2 else one
        for one in case.inputs
    )
    return replace(case, inputs=tuple(inputs))


@pytest.mark.parametrize(
    "name",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.thorough) for one in SOURCES],
)
def test_a_kernel_of_each_kind_is_right(court: KernelJudge, name: str) -> None:
    problem = tutorial_problem(name)
    if not EVERYTHING:
        problem = replace(problem, cases=tuple(few_rows(case) for case in problem.cases[:2]))
    verdict = court.judge(tutorial_kernel(name), problem, target="gfx942")
    assert verdict.status == "correct", verdict.reason


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["gfx90a", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", SOURCES)
def test_it_is_on_every_target(court: KernelJudge, name: str, target: str) -> None:
    verdict = court.judge(tutorial_kernel(name), tutorial_problem(name), target=target)
    assert verdict.status == "correct", verdict.reason


@pytest.mark.parametrize(
    ("name", "old", "new", "status"),
    [
        ("accumulate", "kept = at < n", "kept = at <= n", "wrong"),
        ("softmax", 'other=-float("inf")', "other=0.0", "wrong"),
        ("linear_gelu", "(m % M)[None, :]", "m[None, :]", "wrong"),
        ("seeded_dropout", "tl.rand(seed, at)", "tl.rand(seed, at + 1)", "wrong"),
        ("layer_norm_backward", "tl.atomic_xchg(locks + part, 0)", "pass", "crashed"),
        ("grouped_linear", "tile += PROGRAMS", "tile += PROGRAMS + 1", "wrong"),
        ("attention_causal_bf16", "out * shrunk[:, None]", "out", "wrong"),
    ],
)
@pytest.mark.thorough
def test_a_mistake_is_found(court: KernelJudge, name: str, old: str, new: str, status: str) -> None:
    kernel = tutorial_kernel(name, **{old: new})
    verdict = court.judge(kernel, tutorial_problem(name), target="gfx942")
    assert verdict.status == status, verdict.reason
