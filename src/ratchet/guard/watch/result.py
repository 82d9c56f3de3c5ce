"""Results of `ratchet watch`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ratchet.ledger.observations import Better

WatchAnswer = Literal["slower", "faster", "not slower", "undecided", "no baseline", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedResult:
    """One benchmark's answer."""

    name: str
    unit: str
    better: Better
    answer: WatchAnswer
    why: str
    base: float | None = None
    """Median of the base."""
    head: float | None = None
    worse: float | None = None
    """How much worse the head is: 0.02 is 2 % slower, or 2 % less where higher is better."""
    low: float | None = None
    high: float | None = None
    runs: int = 0
    """Pairs, or runs of the head against a history."""
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchReport:
    """The answers of a suite."""

    base: str
    """A revision, or the file of a history."""
    head: str
    margin: float
    """What is allowed to be slower."""
    confidence: float
    """Of each interval: 95 % for all of them together."""
    results: tuple[WatchedResult, ...]
    notes: tuple[str, ...]
    advisory: bool

    @property
    def red(self) -> bool:
        """Return whether the gate is closed."""
        bad = any(one.answer in ("slower", "failed") for one in self.results)
        return bad and not self.advisory

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "red": self.red}
