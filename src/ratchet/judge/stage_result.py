"""The result of a stage of a trial: a value for the next stage, or the verdict.

A stage returns `Ok` or `Decided`, each with the stage's evidence. Only code that drives a
candidate's process raises, a `CandidateFault`, which `as_stage` turns into a `Decided`.
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
    """The trial ends with this answer."""

    status: Status
    reason: str
    """One printable line: a candidate may have chosen the words."""
    evidence: tuple[Evidence, ...] = ()
    not_timed: str = ""
    """Why the speed of a right kernel is unknown."""
    speedup: Speedups = field(default_factory=Speedups)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", _printable(self.reason))

    @staticmethod
    def untimed(why: str) -> Decided:
        """Return the answer on a right kernel whose speed is unknown."""
        reason = f"right on every case; its speed was not measured: {why}"
        return Decided("correct", reason, not_timed=why)


class CandidateFault(Exception):
    """A candidate's process failed, or gave a wrong answer, which decides the verdict."""

    def __init__(self, decided: Decided, *, raised: bool = False) -> None:
        super().__init__(decided.reason)
        self.decided = decided
        self.raised = raised
        """True if the kernel rejected its inputs, or returned other forms; its process goes on."""

    def on(self, where: str) -> CandidateFault:
        """Return it with the place where it happened."""
        named = replace(self.decided, reason=f"{where}: {self.decided.reason}")
        return CandidateFault(named, raised=self.raised)


def fault(status: Status, reason: str, *, raised: bool = False) -> CandidateFault:
    """Return the exception for a failure of a candidate's process."""
    return CandidateFault(Decided(status, reason), raised=raised)


def as_stage(run: Callable[[list[Evidence]], T | Decided]) -> Ok[T] | Decided:
    """Run a stage, which adds evidence to the list it gets; all of it is kept."""
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
