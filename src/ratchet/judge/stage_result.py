"""The result of a stage of a trial: a value to go on with, or the verdict.

A stage returns `Ok` or `Decided`, each with the evidence that the stage found. Only what drives a
candidate's process raises, `CandidateFault`; `as_stage` turns that into a `Decided`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ratchet.judge.verdict import Evidence, Speedups, Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ok(Generic[T]):
    """The trial goes on, with this value."""

    value: T
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The verdict is clear, and nothing more need be done."""

    status: Status
    reason: str
    """One line; what a terminal or a file cannot take is left out, as a candidate chose words."""
    evidence: tuple[Evidence, ...] = ()
    not_timed: str = ""
    """Why the speed of a kernel that was right is not known."""
    speedup: Speedups = field(default_factory=Speedups)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _printable(self.reason))

    @staticmethod
    def untimed(why: str) -> Decided:
        """Every output was right, nothing speaks against the kernel, its speed is not known."""
        reason = f"right on every case; its speed was not measured: {why}"
        return Decided("correct", reason, not_timed=why)


class CandidateFault(Exception):
    """A candidate's process failed, or gave a wrong answer: the verdict is clear."""

    def __init__(self, decided: Decided) -> None:
        super().__init__(decided.reason)
        self.decided = decided


def fault(status: Status, reason: str) -> CandidateFault:
    """Return what to raise where a candidate's process decides its verdict."""
    return CandidateFault(Decided(status, reason))


def as_stage(run: Callable[[list[Evidence]], T | Decided]) -> Ok[T] | Decided:
    """Run one stage. It fills the list it is given; that evidence stays, however the stage ends."""
    found: list[Evidence] = []
    try:
        value = run(found)
    except CandidateFault as error:
        value = error.decided
    if isinstance(value, Decided):
        return replace(value, evidence=(*found, *value.evidence))
    return Ok(value, tuple(found))


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
