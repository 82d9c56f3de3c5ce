"""The compiler's turns: its kernels take long, so its first one tells whether there is time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from made_up_space import MadeUpSpace, made_up_problem

from ratchet.base.measure import Ratio
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.judge.verdict import Screening, Speedups, Verdict
from ratchet.write import problem_run
from ratchet.write.author import COMPILER, Author, Progress, Proposal
from ratchet.write.problem_run import ProblemRun
from ratchet.write.search import SearchAuthor
from ratchet.write.writing_result import WritingRequest


@dataclass
class SlowCourt:
    """A court whose clock is its own: kernels of the compiler take `compiling_s` each to screen."""

    compiling_s: float
    ratio: float | None = 1.5
    """Of the compiler's kernels; None if they cannot be timed."""
    now_s: float = 0.0
    compiled: list[str] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)
    """Of the screenings with a kernel of the compiler's."""
    verdicts: list[tuple[str, float]] = field(default_factory=list)
    """Language and time limit."""

    def clock(self) -> float:
        return self.now_s

    def screen(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms, *, best: Kernel | None
    ) -> list[Screening]:
        time_limit_s = terms.time_limit_s
        slow = [one.hash for one in kernels if one.language == "torch"]
        self.compiled += slow
        if slow:
            self.limits_s.append(time_limit_s)
        took_s = self.compiling_s * len(slow) + 0.1 * len(kernels)
        self.now_s += min(took_s, time_limit_s)
        timed = took_s <= time_limit_s
        found = []
        for one in kernels:
            ratio = (self.ratio if timed else None) if one.hash in slow else 1.2
            status: Any = "screened" if ratio else "unmeasured"
            found.append(Screening(kernel_hash=one.hash, status=status, ratio=ratio))
        return found

    fleet = SimpleNamespace(width=1)

    def judge_all(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms, *, fresh: bool
    ) -> Iterator[JudgedKernel]:
        for kernel in kernels:
            yield self._verdict(kernel, problem, terms)

    def _verdict(self, kernel: Kernel, problem: Problem, terms: Terms) -> JudgedKernel:
        self.verdicts.append((kernel.language, terms.time_limit_s))
        took_s = problem_run.STARTS * self.compiling_s if kernel.language == "torch" else 5.0
        timed = took_s <= terms.time_limit_s
        self.now_s += min(took_s, terms.time_limit_s)
        ratio = Ratio(ratio=1.5, low=1.4, high=1.6, confidence=0.95) if timed else None
        verdict = Verdict(
            status="proven" if timed else "correct",
            reason="",
            speedup=Speedups(vs_reference=ratio),
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )
        return JudgedKernel(
            verdict=verdict,
            kernel=kernel,
            problem=problem,
            judged_at="2026-11-23T00:00:00+00:00",
            recalled=False,
        )


class SlowAuthor:
    """Has as many kernels as one asks for, all of them compiled."""

    name = COMPILER

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        made = len(progress.answers)
        kernels = [
            Kernel(name="slow", language="torch", source=f"# {made + one}", entry="f")
            for one in range(count)
        ]
        return [Proposal(kernel=one, author=self.name) for one in kernels]


def written(court: SlowCourt, budget_s: float, *, search: bool) -> ProblemRun:
    authors: list[Author] = [SearchAuthor(MadeUpSpace())] if search else []
    found = ProblemRun(
        problem=made_up_problem(),
        request=WritingRequest(budget_s=budget_s),
        authors=[*authors, SlowAuthor()],
        court=court,
        keep=lambda answer: None,
        listen=lambda event: None,
        clock=court.clock,
    )
    found.search()
    found.confirm()
    return found


def test_the_first_kernel_without_a_time_is_the_compilers_last() -> None:
    court = SlowCourt(compiling_s=10.0, ratio=None)
    found = written(court, 120.0, search=True)
    assert len(court.compiled) == 1
    assert "could not be timed here" in found.dropped[COMPILER]
    assert found.screened > 50, "the search goes on"
    assert [one.verdict.status for one in found.verdicts] == ["proven"]


def test_alone_it_ends_the_run_and_leaves_the_rest_of_the_budget() -> None:
    court = SlowCourt(compiling_s=1000.0)
    found = written(court, 60.0, search=False)
    assert len(court.compiled) == 1 and found.stopped == "no more proposals"
    assert found.spent_s < 40.0


def test_kernels_whose_verdict_does_not_fit_are_not_proposed_further() -> None:
    court = SlowCourt(compiling_s=11.0)
    found = written(court, 80.0, search=True)
    assert len(court.compiled) == 1
    assert "a verdict on a kernel of its takes about 44 s" in found.dropped[COMPILER]
    assert [language for language, _ in court.verdicts] == ["cpp"], "that one fits"
    assert found.verdicts[0].verdict.status == "proven"


def test_time_is_kept_for_the_verdict_of_a_compiled_kernel_that_leads() -> None:
    court = SlowCourt(compiling_s=12.0)
    found = written(court, 150.0, search=False)
    assert len(court.compiled) > 1 and COMPILER not in found.dropped
    ((language, limit_s),) = court.verdicts
    assert language == "torch" and limit_s >= problem_run.STARTS * 12.0
    assert found.verdicts[0].verdict.status == "proven"


def test_a_compiled_kernel_that_is_slower_costs_no_long_verdict() -> None:
    court = SlowCourt(compiling_s=5.0, ratio=0.9)
    written(court, 120.0, search=False)
    assert court.verdicts[0][1] == problem_run.LEAST_VERDICT_S


def test_its_first_kernel_has_time_to_compile() -> None:
    court = SlowCourt(compiling_s=15.0)
    written(court, 120.0, search=True)
    assert court.limits_s[0] >= 15.0
