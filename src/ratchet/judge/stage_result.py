"""The answer of a trial, and the exception by which a stage gives it before the last one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ratchet.judge.verdict import Speedups, Status


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer with which a trial ends."""

    status: Status
    reason: str
    """One printable line: a candidate may have chosen the words."""
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
    """A stage has the answer: a candidate failed, is wrong, or cannot be judged further."""

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
    """Return the exception that ends a trial with this answer."""
    return CandidateFault(Decided(status, reason), raised=raised)


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
