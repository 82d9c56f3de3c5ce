"""Judge every problem of a suite in turn; verdicts that the ledger holds are recalled."""

from __future__ import annotations

import functools
import math
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.base.files import why_not_folder
from ratchet.base.ledger.connect import utc_now
from ratchet.base.measure import Ratio
from ratchet.base.process import ends_within
from ratchet.judge.api import as_kernel, as_problem
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem, Tier
from ratchet.judge.problems.problem_file import Describe
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.judge.trial.open_problem import SLOWEST_FACTOR
from ratchet.judge.verdict import Speedups, Status

# Score a candidate over a whole suite: fast_p, and a mean that includes every failure.

FAST_P = (1.0, 1.2, 1.5, 2.0)
FAILED_RATIO = 1.0 / SLOWEST_FACTOR
"""Ratio that counts for a failure in the mean.

It is the slowest speed that the judge waits for, so no right answer can score less.
"""
RIGHT: tuple[Status, ...] = ("proven", "correct")

RowStatus = Status | Literal["unanswered", "not_reached"]
Rival = Literal["vs_reference", "vs_compile"]


class SuiteRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One problem of a suite and the outcome for the kernel that answers it."""

    name: str
    status: RowStatus
    """A verdict's status; `unanswered`: no kernel; `not_reached`: the run ended early."""
    reason: str
    speedup: Speedups = Speedups()
    kernel: str = ""
    kernel_hash: str = ""
    problem_hash: str = ""
    recalled: bool = False  # True if the verdict comes from the ledger and was not judged again

    @property
    def right(self) -> bool:
        """Return True if its answers were right on every case."""
        return self.status in RIGHT

    def ratio(self, rival: Rival) -> Ratio | None:
        """Return the speed-up to count; None if an answer was wrong or nothing was timed."""
        return getattr(self.speedup, rival) if self.right else None


class Score(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The score against one rival."""

    measured: int  # Number of right kernels with a measured ratio
    fast_p: dict[str, float]
    """Share of problems with a proven kernel whose whole interval against this rival is above p.

    `Ratio.confidence` is the interval's confidence. The interval alone is not enough: one over
    several cases may be above p although one of the cases is undecided.
    """
    fast_p_by_estimate: dict[str, float]
    """Share of problems with a right kernel and an estimate above p, as in KernelBench.

    Noise can lift a kernel above p.
    """
    geometric_mean: float | None
    """Geometric mean over all problems; a problem without a measured ratio counts as FAILED_RATIO.
    """
    geometric_mean_of_measured: float | None
    """Geometric mean over measured problems only; it does not show how many failed."""


class SuiteSummary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All counts and scores of one set of problems."""

    problems: int
    right: int
    statuses: dict[str, int]
    failed_ratio: float = FAILED_RATIO
    vs_reference: Score
    vs_compile: Score | None  # None if torch.compile was not requested as a rival


def summarise(rows: Sequence[SuiteRow], *, against_compile: bool) -> SuiteSummary:
    """Summarise all given rows, failures included."""
    return SuiteSummary(
        problems=len(rows),
        right=sum(row.right for row in rows),
        statuses=dict(Counter(row.status for row in rows)),
        vs_reference=score(rows, "vs_reference"),
        vs_compile=score(rows, "vs_compile") if against_compile else None,
    )


def score(rows: Sequence[SuiteRow], rival: Rival) -> Score:
    """Compute fast_p and the means against one rival."""
    ratios = [row.ratio(rival) for row in rows]
    found = [ratio for ratio in ratios if ratio is not None]
    proven = [
        ratio.low
        for row, ratio in zip(rows, ratios, strict=True)
        if ratio is not None and row.status == "proven"
    ]
    all_ratios = [FAILED_RATIO if ratio is None else ratio.ratio for ratio in ratios]
    return Score(
        measured=len(found),
        fast_p=_shares(proven, len(rows)),
        fast_p_by_estimate=_shares([ratio.ratio for ratio in found], len(rows)),
        geometric_mean=_mean(all_ratios),
        geometric_mean_of_measured=_mean([ratio.ratio for ratio in found]),
    )


def _shares(ratios: Sequence[float], problems: int) -> dict[str, float]:
    if not problems:
        return {f"{p:g}": 0.0 for p in FAST_P}
    return {f"{p:g}": sum(ratio > p for ratio in ratios) / problems for p in FAST_P}


def _mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; a right kernel slower than a failure counts as a failure."""
    if not ratios:
        return None
    logs = [math.log(max(ratio, FAILED_RATIO)) for ratio in ratios]
    return math.exp(math.fsum(logs) / len(logs))


def answered(rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    """Return the rows of problems that have a kernel."""
    return [row for row in rows if row.status not in ("unanswered", "not_reached")]


class SuiteResult(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole result of `ratchet judge --suite`: the document behind the table and the page."""

    suite: str
    candidate: str
    tier: str
    summary: dict[Literal["all", "answered"], SuiteSummary]
    rows: list[SuiteRow]
    interrupted: bool
    device: dict[str, object]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float


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
    fresh: bool = False  # Judge again even if the ledger has a verdict
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


# Candidates for a suite: a shipped library, a folder of kernels, eager torch, torch.compile.

LIBRARIES = ("library", "library-triton")
YARDSTICKS = ("eager", "torch.compile")
"""torch itself: judged on results and time, but not on whose code did the work."""
LANGUAGE_FILES = (".cpp", ".cc", ".cxx", ".py", ".hip")


def training_suite(name: str, *, tier: Tier, candidate: str) -> Suite:
    """Return a shipped suite by name.

    Raises RatchetError: there is no such suite or candidate.
    """
    from ratchet.judge.problems.suites import load_suite

    check_candidate(candidate)

    def question(problem: Problem) -> Question:
        name = problem.name
        return Question(name=name, read=lambda _: kernel_of(candidate, name, problem.at(tier)))

    return Suite(
        name=name,
        candidate=candidate,
        tier=tier,
        questions=tuple(question(problem) for problem in load_suite(name)),
    )


def kernelbench_suite(folder: Path, terms: Terms, *, level: int, candidate: str) -> Suite:
    """Return one level of a clone of KernelBench in any folder; `terms` hold for each problem.

    Raises RatchetError: there is no such level or candidate.
    """
    if candidate in LIBRARIES:
        raise RatchetError(
            "the library has no kernels for KernelBench: give --candidate torch.compile, eager or "
            "a folder of kernels"
        )
    check_candidate(candidate)

    def question(path: Path) -> Question:
        def read(describe: Describe) -> Asked:
            problem = as_problem(path, terms, describe=describe)
            return kernel_of(candidate, path.stem, problem, level=level)

        return Question(name=path.stem, read=read)

    paths = sorted(level_folder(folder, level).glob("*.py"), key=_order)
    return Suite(
        name=f"KernelBench level {level}",
        candidate=candidate,
        tier="cpu" if terms.scale is None else f"scale {terms.scale}",
        questions=tuple(question(path) for path in paths if path.stem != "__init__"),
    )


def level_folder(folder: Path, level: int) -> Path:
    """Return the folder of a level's problems, in a clone or in a copy of its inner folder."""
    if why := why_not_folder(folder):
        raise RatchetError(f"{str(folder)!r} {why}: give a clone of KernelBench")
    places = (folder / "KernelBench", folder)
    for place in places:
        found = place / f"level{level}"
        if found.is_dir() and any(found.glob("*.py")):
            return found
    levels = sorted({one.name for place in places for one in place.glob("level[0-9]*")})
    known = f"it has {', '.join(levels)}" if levels else "give a clone of KernelBench"
    raise RatchetError(f"{str(folder)!r} has no problems of level {level}: {known}")


def _order(path: Path) -> tuple[int, str]:
    """Sort by the number at the start of the name, so that 9_ comes before 10_."""
    number = re.match(r"\d+", path.stem)
    return (int(number[0]) if number else 0, path.stem)


def check_candidate(candidate: str) -> None:
    """Raise a RatchetError for a candidate that is neither built in nor a folder."""
    built_in = (*LIBRARIES, *YARDSTICKS)
    if candidate not in built_in and not Path(candidate).is_dir():
        raise RatchetError(
            f"candidate {candidate!r} is neither a folder nor one of {', '.join(built_in)}"
        )


def kernel_of(candidate: str, name: str, problem: Problem, *, level: int | None = None) -> Asked:
    """Return the problem to judge under this name, and the candidate's kernel for it, if any."""
    if candidate in LIBRARIES:
        return problem, _library(candidate).get(name)
    if candidate in YARDSTICKS:
        from ratchet.judge.kernels.kernel_file import built_in_kernel

        return replace(problem, task="any"), built_in_kernel(problem, candidate)
    folder = Path(candidate)
    for place in [folder] if level is None else [folder / f"level{level}", folder]:
        for ending in LANGUAGE_FILES:
            path = place / f"{name}{ending}"
            if path.exists():
                return problem, as_kernel(path, problem)
    return problem, None


@functools.cache
def _library(candidate: str) -> dict[str, Kernel]:
    from ratchet.base.devices.probe import best_isa
    from ratchet.judge.kernels.library import kernels_for
    from ratchet.judge.kernels.library.sources import ANY_GPU

    return kernels_for(ANY_GPU if candidate == "library-triton" else best_isa())
