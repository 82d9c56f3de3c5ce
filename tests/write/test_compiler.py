"""The compiler as an author: what it proposes, in which order, and that it runs."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from answers import assert_right
from made_up_space import screened

import ratchet
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.write.author import Answer, Author, Progress, Proposal
from ratchet.write.compiler import SETS, CompilerAuthor, compiled_kernel, option_sets

SOFTMAX = """
import torch

def reference(x, scalars):
    return (torch.softmax(x, -1).tanh(),)
"""
PROBLEM = Problem(
    name="soft",
    reference="reference",
    text=SOFTMAX,
    cases=(
        Case(name="rows", timed=True, inputs=(TensorSpec(shape=(256, 512), dtype="float32"),)),
        Case(name="small", hidden=True, inputs=(TensorSpec(shape=(7, 33), dtype="float32"),)),
    ),
)


def all_proposals(author: Author, progress: Progress) -> list[Proposal]:
    found: list[Proposal] = []
    while batch := author.propose(progress, 4):
        assert len(batch) <= 4
        found += batch
    return found


def answered(proposal: Proposal, ratio: float) -> Answer:
    return screened(proposal, ratio)


def test_one_set_a_proposal_and_none_twice() -> None:
    proposals = all_proposals(CompilerAuthor(), Progress(PROBLEM))
    assert len(proposals) > 8
    assert len({one.kernel.hash for one in proposals}) == len(proposals)
    assert all(one.kernel.language == "torch" and one.author == "compiler" for one in proposals)
    for one in proposals:
        ast.parse(one.kernel.source)


def test_the_defaults_come_first_as_the_judge_knows_them() -> None:
    (first,) = CompilerAuthor().propose(Progress(PROBLEM), 1)
    assert first.kernel == built_in_kernel(PROBLEM, "torch.compile")


def test_what_was_answered_is_not_proposed_again() -> None:
    (first,) = CompilerAuthor().propose(Progress(PROBLEM), 1)
    progress = Progress(PROBLEM, [answered(first, 1.0)])
    (second,) = CompilerAuthor().propose(progress, 1)
    assert second.kernel.hash != first.kernel.hash


def test_own_work_is_not_its_business() -> None:
    assert CompilerAuthor().propose(Progress(replace(PROBLEM, task="own")), 5) == []


def test_sets_follow_the_reference() -> None:
    plain = {one.schedule for one in option_sets("cpp", "x * 2")}
    scatter = {one.schedule for one in option_sets("cpp", "aten.index_add.default(x)")}
    assert (("cpp.fallback_scatter_reduce_sum", "False"),) in scatter - plain


@pytest.mark.parametrize("backend", SETS)
def test_this_torch_knows_most_options(backend: str) -> None:
    text = "sum norm mm scatter tanh"
    known = option_sets(backend, text)  # type: ignore[arg-type]
    assert len(known) >= len(SETS[backend]) - 2  # type: ignore[index]
    assert not any("freezing" in one.options for one in known)


def test_the_best_two_sets_are_combined() -> None:
    author, progress = CompilerAuthor(), Progress(PROBLEM)
    proposals = all_proposals(author, progress)
    ratios = {(): 1.0, proposals[1].schedule: 1.5, proposals[2].schedule: 1.2}
    progress.answers = [answered(one, ratios.get(one.schedule, 0.9)) for one in proposals]
    (combined,) = author.propose(progress, 5)
    assert set(combined.schedule) == {*proposals[1].schedule, *proposals[2].schedule}
    assert author.propose(progress, 5) == []


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.thorough
def test_a_proposal_is_right() -> None:
    kernel = compiled_kernel(PROBLEM, {"cpp.simdlen": 256, "split_reductions": False})
    assert_right(ratchet.judge(kernel, PROBLEM, time_limit_s=180))
