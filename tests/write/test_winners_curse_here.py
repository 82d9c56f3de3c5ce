"""The same on this machine: kernels of the reference's own text, each with another comment.

RATCHET_SEARCHES=20 runs so many long searches, of up to two minutes each.
"""

from __future__ import annotations

import os
import random

import pytest
from commands import needs_judge
from made_up_space import MadeUpSpace, RandomSearch

from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.write.author import Schedule
from ratchet.write.problem_run import ProblemRun
from ratchet.write.writing_result import WritingRequest

SEARCHES = int(os.environ.get("RATCHET_SEARCHES", "1"))
SOURCE = """
import torch

def silu(x, scalars):
    scaled = x * scalars[0]
    return (scaled * (1 / (1 + torch.exp(-x))),)
"""


def silu_problem() -> Problem:
    """A call takes about a millisecond: longer than a saved dispatch could pay."""

    def case(name: str, *shape: int, **kw: object) -> Case:
        spec = TensorSpec(shape=shape, dtype="float32")
        return Case(name=name, inputs=(spec,), scalars=(1.5,), **kw)  # type: ignore[arg-type]

    cases = (case("timed", 512, 768, timed=True), case("hidden", 7, 33, hidden=True))
    return Problem(name="silu", reference="made_up_references:silu", cases=cases)


class SameKernels(MadeUpSpace):
    """Every schedule is another comment in one kernel."""

    def kernel(self, schedule: Schedule) -> Kernel:
        words = ", ".join(f"{name}={value}" for name, value in schedule)
        source = f"{SOURCE}\n# {words}\n"
        return Kernel(name="same", language="torch", source=source, entry="silu")


def searched(ledger: str, *, seed: int, candidates: int, budget_s: float) -> ProblemRun:
    with Court(ledger) as court:
        run = ProblemRun(
            problem=silu_problem(),
            request=WritingRequest(budget_s=budget_s, candidates=candidates, seed=seed),
            authors=[RandomSearch(SameKernels(same=True), seed=seed)],
            court=court,
            keep=lambda answer: None,
            listen=lambda event: None,
        )
        run.search()
        run.confirm()
    return run


@needs_judge
def test_a_few_equal_kernels_are_screened_and_none_is_proven(tmp_path: object) -> None:
    run = searched(f"{tmp_path}/l.db", seed=0, candidates=8, budget_s=45.0)
    assert run.screened > 0
    assert [one.verdict.status for one in run.verdicts] == ["correct"]


@needs_judge
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", random.Random(1).sample(range(1000), SEARCHES))
def test_a_hundred_equal_kernels_prove_none(seed: int, tmp_path: object) -> None:
    run = searched(f"{tmp_path}/l.db", seed=seed, candidates=100, budget_s=120.0)
    assert run.screened > 20
    assert "proven" not in [one.verdict.status for one in run.verdicts]
