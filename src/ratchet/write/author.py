"""The words that authors and a writing run share: proposal, answer, progress, author, space."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol

from ratchet.base.serialise import document_of
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.verdict import Screening, Verdict

Schedule = tuple[tuple[str, str], ...]
"""Names and values of a kernel's choices, sorted by name; the values are texts."""

Stage = Literal["screened", "judged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    kernel: Kernel
    author: str
    parents: tuple[str, ...] = ()  # Hashes of the kernels that it came from
    note: str = ""  # One line: what is new in it
    schedule: Schedule = ()
    features: tuple[float, ...] = ()
    """Features of the problem, then of the schedule, for a cost model; empty if there are none."""
    opener: bool = False
    """Its author had a reason to begin with it: a default, or a kernel that won elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Proposal):
    """A proposal with the judge's answer, by screening or by a full verdict.

    The run, the ledger and the result hold it in this form.
    """

    stage: Stage
    status: str  # `screened`, or a status of a verdict: `proven`, `correct`, `wrong`, ...
    reason: str
    ratio: float | None = None  # Reference time over the kernel's time; None if it was not timed
    low: float | None = None
    high: float | None = None  # Ends of the ratio's confidence interval
    evidence: tuple[str, ...] = ()  # Checks that failed, one line each, as an author may read them
    after_s: float = 0.0  # Seconds from the start of the run to this answer
    time_s: float | None = None  # Seconds that a call of the kernel took, where it was timed
    rung: int = 0  # The number of earlier screenings
    static_rank: tuple[float, ...] = ()
    """Smaller is better: the order among kernels that cannot be timed here."""

    @staticmethod
    def by_screening(proposal: Proposal, said: Screening, **others: Any) -> Answer:
        return Answer(
            **_words_of(proposal),
            stage="screened",
            status=said.status,
            reason=said.reason,
            ratio=said.ratio,
            low=said.low,
            high=said.high,
            time_s=said.time_s,
            evidence=said.evidence,
            static_rank=said.static_rank,
            **others,
        )

    @staticmethod
    def by_verdict(proposal: Proposal, verdict: Verdict, *, after_s: float = 0.0) -> Answer:
        ratio = verdict.speedup.vs_reference
        failed = (one for one in verdict.evidence if one.passed is False)
        return Answer(
            **_words_of(proposal),
            stage="judged",
            status=verdict.status,
            reason=verdict.reason,
            ratio=None if ratio is None else ratio.ratio,
            low=None if ratio is None else ratio.low,
            high=None if ratio is None else ratio.high,
            evidence=tuple(f"{one.check}: {one.detail}" for one in failed),
            after_s=after_s,
        )

    @property
    def kernel_hash(self) -> str:
        return self.kernel.hash

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def language(self) -> str:
        return self.kernel.language

    def as_json(self) -> dict[str, object]:
        """Return the answer without the kernel's source, which its hash finds in the ledger."""
        found: dict[str, object] = document_of(self)
        del found["kernel"]
        own = {"kernel_hash": self.kernel_hash, "name": self.name, "language": self.language}
        return own | found


def _words_of(proposal: Proposal) -> dict[str, Any]:
    return {one.name: getattr(proposal, one.name) for one in fields(Proposal)}


def ancestry(answers: Sequence[Answer], kernel_hash: str) -> list[Answer]:
    """Return a kernel and its ancestors, nearest first, each with its newest answer."""
    newest = {one.kernel_hash: one for one in answers}
    found: dict[str, Answer] = {}
    waiting = [kernel_hash]
    while waiting:
        one = waiting.pop(0)
        if one not in found and one in newest:
            found[one] = newest[one]
            waiting += newest[one].parents
    return list(found.values())


@dataclass(slots=True)
class Progress:
    """One problem's run so far, as every author sees it."""

    problem: Problem
    answers: list[Answer] = field(default_factory=list)
    left_s: float = math.inf  # Seconds that an author may take for its next proposals

    @property
    def best(self) -> Answer | None:
        """Return the right answer with the highest ratio; None while there is none."""
        right = [one for one in self.answers if one.status in RIGHT and one.ratio is not None]
        return max(right, key=lambda one: one.ratio or 0.0, default=None)


SEARCH: Final = "search"
COMPILER: Final = "compiler"
AGENT: Final = "agent"  # Names of authors that a run treats by name

RIGHT = ("proven", "correct", "screened")
FAILED = ("wrong", "cheating", "crashed", "timed_out", "refused")
"""Statuses that take a kernel out of a run."""


class Author(Protocol):
    """Proposes kernels. An author is never trusted."""

    @property
    def name(self) -> str: ...

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` new proposals; none if the author has nothing left to say."""
        ...


class Space(Protocol):
    """The schedules that one problem's generated kernels can have."""

    def first(self) -> list[Schedule]:
        """Return the schedules to try first, the most promising first."""
        ...

    def draw(self, source: random.Random) -> Schedule: ...

    def change(self, schedule: Schedule, source: random.Random) -> Schedule:
        """Return a neighbour of `schedule`: one choice is another."""
        ...

    def features(self, schedule: Schedule) -> tuple[float, ...]:
        """Return numbers for a cost model: of the problem first, then of the schedule."""
        ...

    def kernel(self, schedule: Schedule) -> Kernel: ...
