"""The answer of a bisection."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

BisectAnswer = Literal["found", "narrowed", "not reproduced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A commit of the credible set."""

    revision: str
    subject: str
    probability: float
    skipped: str
    """Why it could not be measured; empty if it was, or was not needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectResult:
    """The answer, with what it rests on."""

    answer: BisectAnswer
    reason: str
    good: str
    bad: str
    commits: int
    """Between GOOD and BAD, with BAD."""
    suspects: tuple[Suspect, ...]
    """The credible set at 95 %, the most probable first; empty if nothing was reproduced."""
    change: float | None
    """Of the metric from GOOD to BAD: 0.02 is 2 % more."""
    low: float | None
    high: float | None
    pairs: dict[str, int]
    """How many were measured at the ends, in the search and in the confirmation."""
    confirmed: bool
    """Whether the commit differs from its parent as the bad endpoint does from the good one."""
    resumed_pairs: int
    notes: tuple[str, ...]

    @property
    def found(self) -> Suspect | None:
        return self.suspects[0] if self.answer == "found" else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
