"""The result of a turn on many ranks: the document behind its result.json and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from ratchet.base.serialise import document_of
from ratchet.scale.parallel.rank import RankArm
from ratchet.train.turn.optimize_result import Change

Outcome = Literal["kept", "dropped", "not_applicable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChange:
    """One lever, and what became of it."""

    name: str
    outcome: Outcome
    reason: str
    ratio: float | None = None
    """Ratio of the screening, with its interval; an estimate."""
    low: float | None = None
    high: float | None = None
    gradient_error: float | None = None
    changes_arithmetic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelTurn:
    """The result of one turn on many ranks. Times are of a step, in seconds."""

    workload: str
    layout: str
    world: int
    tuned: RankArm
    """The recipe's arm; as written if nothing was proven."""
    proven: bool
    ratio: float | None
    """Time as written over the tuned time, of the slowest rank."""
    low: float | None
    high: float | None
    answer: str
    written_s: float | None
    tuned_s: float | None
    exposed_written_s: float | None
    """Exposed communication of the rank that exposes most, median over launches."""
    exposed_tuned_s: float | None
    losses: str
    changes: tuple[RankChange, ...]
    one_process: tuple[Change, ...]
    """Levers and kernels of one rank's step, and what became of them in a turn of one process."""
    recipe: str
    result: str
    report: str
    command: str
    """Runs a script that applies the recipe."""
    versions: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return the JSON document of the turn."""
        return {
            **asdict(self),
            "tuned": document_of(self.tuned),
            "one_process": [document_of(one) for one in self.one_process],
        }
