"""Judge every problem of a suite in turn; verdicts that the ledger holds are recalled."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ratchet.base.errors import RatchetError
from ratchet.base.ledger.connect import utc_now
from ratchet.base.process import ends_within
from ratchet.judge.court.court import Court
from ratchet.judge.court.score import SuiteResult, SuiteRow, answered, summarise
from ratchet.judge.court.terms import JudgedKernel, Terms
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import Describe

Asked = tuple[Problem, Kernel | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One problem of a suite and the function that reads it; nothing is read before its turn."""

    name: str
    read: Callable[[Describe], Asked]
    """Return the problem, read beside the judge, and the kernel that answers it, if any; raises
    RatchetError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """A named list of problems and the candidate that answers them."""

    name: str
    candidate: str
    tier: str
    questions: tuple[Question, ...]


Listener = Callable[[SuiteRow, JudgedKernel | None], None]
"""Called after each problem with its row, and with its verdict if the problem was judged."""


@dataclass(kw_only=True)
class SuiteRun:
    """One pass over a suite. The result of an interrupted run marks problems not reached."""

    suite: Suite
    court: Court
    terms: Terms
    fresh: bool = False
    """Judge again even if the ledger has a verdict."""
    rows: list[SuiteRow] = field(default_factory=list)
    started_at: str = field(default_factory=utc_now)
    _began_s: float = field(default_factory=time.monotonic)
    _read_ahead: dict[str, Asked] = field(default_factory=dict)
    _spent_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent on reading each problem."""

    def run(self, listener: Listener) -> None:
        """Judge every problem that has not been reached yet."""
        left = self.suite.questions[len(self.rows) :]
        for question, following in zip(left, [*left[1:], None], strict=True):
            row, judged = self._answer(question, following)
            self.rows.append(row)
            listener(row, judged)

    def result(self) -> SuiteResult:
        """Return the table so far."""
        left = self.suite.questions[len(self.rows) :]
        rows = [
            *self.rows,
            *(
                SuiteRow(name=one.name, status="not_reached", reason="the run ended before it")
                for one in left
            ),
        ]
        device, versions = self.court.judged_on(
            "cpu" if self.terms.device == "auto" else self.terms.device
        )
        compiled = self.terms.against_compile
        return SuiteResult(
            suite=self.suite.name,
            candidate=self.suite.candidate,
            tier=self.suite.tier,
            summary={
                "all": summarise(rows, against_compile=compiled),
                "answered": summarise(answered(rows), against_compile=compiled),
            },
            rows=rows,
            interrupted=bool(left),
            device=device,
            versions=versions,
            command=shlex.join(["ratchet", *sys.argv[1:]]),
            started_at=self.started_at,
            duration_s=time.monotonic() - self._began_s,
        )

    def _answer(
        self, question: Question, following: Question | None
    ) -> tuple[SuiteRow, JudgedKernel | None]:
        try:
            known = self._read_ahead
            problem, kernel = (
                known.pop(question.name) if question.name in known else self._read(question)
            )
        except RatchetError as error:
            return SuiteRow(name=question.name, status="refused", reason=str(error)), None
        if kernel is None:
            reason = f"{self.suite.candidate} has no kernel for it"
            return SuiteRow(name=question.name, status="unanswered", reason=reason), None
        try:
            judged = self._known(kernel, problem)
            if judged is None:
                then, spent_s = self._kernel_of(following), self._spent_s[question.name]
                terms = replace(self.terms, spent_s=spent_s)
                with ends_within(terms.time_limit_s - spent_s):
                    judged = self.court.judge(kernel, problem, terms, fresh=True, then=then)
        except RatchetError as error:
            return SuiteRow(name=question.name, status="unmeasured", reason=str(error)), None
        return _row(question.name, judged), judged

    def _read(self, question: Question) -> Asked:
        began = time.monotonic()
        with ends_within(self.terms.time_limit_s):
            asked = question.read(self.court.describe)
        self._spent_s[question.name] = time.monotonic() - began
        return asked

    def _known(self, kernel: Kernel, problem: Problem) -> JudgedKernel | None:
        return None if self.fresh else self.court.known(kernel, problem, self.terms)

    def _kernel_of(self, question: Question | None) -> Kernel | None:
        """Return the next kernel if it must be judged; errors are reported when its turn comes."""
        if question is None:
            return None
        try:
            problem, kernel = self._read_ahead[question.name] = self._read(question)
        except RatchetError:
            return None
        return None if kernel is None or self._known(kernel, problem) else kernel


def _row(name: str, judged: JudgedKernel) -> SuiteRow:
    verdict = judged.verdict
    return SuiteRow(
        name=name,
        status=verdict.status,
        reason=verdict.reason,
        speedup=verdict.speedup,
        kernel=judged.kernel.name,
        kernel_hash=verdict.kernel_hash,
        problem_hash=verdict.problem_hash,
        recalled=judged.recalled,
    )


def all_right(rows: Sequence[SuiteRow]) -> bool:
    """Return True if every judged kernel is right; unanswered problems do not count."""
    return all(row.right for row in answered(rows))
