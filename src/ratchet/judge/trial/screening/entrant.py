"""One candidate of a screening: its time limits, what is known of it, and its answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Final

from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.targets import targets
from ratchet.judge.trial.kernel_checks import CaseFacts
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.screening.rounds import Timed
from ratchet.judge.verdict import CandidateFault, Decided, Screening, ScreeningStatus

SLOWEST_FACTOR: Final = 30.0
SLOWEST_FLOOR_S: Final = 1.0
"""A call may be at work for this long, plus this many times the reference's time."""
STEP_S: Final = 10.0
"""Work that a step of a candidate's process may take, such as importing its source."""
FIRST_CALL_S: Final = 20.0
"""Work that a Python kernel's first call may take, compilers included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickClock(Clock):
    """A clock whose steps are short: a slow kernel needs a verdict instead."""

    @staticmethod
    def of_s(limit_s: float) -> QuickClock:
        """Return a clock that runs out `limit_s` seconds from now."""
        return QuickClock(deadline=time.monotonic() + limit_s, limit_s=limit_s)

    @property
    def step_limit_s(self) -> float:
        return STEP_S


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickFacts(CaseFacts):
    """A case on which the judge gives up a candidate sooner than in a verdict."""

    def limit_s(self, calls: int) -> float:
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s


@dataclass(slots=True)
class Entrant:
    """One candidate of a screening, and what is known of it so far."""

    kernel: Kernel
    name: str
    runnable: Kernel
    on_gpu: bool = False
    status: ScreeningStatus | None = None
    reason: str = ""
    evidence: list[str] = field(default_factory=list)
    timings: list[Timed] = field(default_factory=list)
    process: CandidateProcess | None = None

    @property
    def is_out(self) -> bool:
        """True if its answer is known."""
        return self.status is not None

    @property
    def is_interpreted(self) -> bool:
        """True if its launches run in Triton's interpreter."""
        return self.kernel.language == "triton" and not self.on_gpu

    def decide(self, decided: Decided) -> None:
        """Answer it; its timings do not count."""
        if self.status is None:
            right = decided.status in ("proven", "correct")  # and not timed
            self.status = "unmeasured" if right else decided.status
            self.reason = decided.reason
            self.evidence.append(self.reason)
            self.timings.clear()
        self.end()

    def end(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    @contextlib.contextmanager
    def on_trial(self) -> Iterator[None]:
        """Take a CandidateFault raised inside as this candidate's answer."""
        try:
            yield
        except CandidateFault as error:
            decided = error.decided
            if self.is_interpreted:
                elsewhere = targets()
                decided = elsewhere.without_blame(decided, elsewhere.INTERPRETER)
            self.decide(decided)

    def answer(self) -> Screening:
        if self.status is None:
            self.decide(Decided("unmeasured", "the screening did not come to it"))
        assert self.status is not None
        answer = Screening(
            kernel_hash=self.kernel.hash,
            status=self.status,
            reason=self.reason,
            evidence=tuple(self.evidence),
        )
        if self.status != "screened":
            return answer
        beside = [one.against_best for one in self.timings if one.against_best is not None]
        return replace(
            answer,
            ratio=geometric_mean(one.ratio for one in self.timings),
            low=geometric_mean(one.low for one in self.timings),
            high=geometric_mean(one.high for one in self.timings),
            time_s=geometric_mean(one.time_s for one in self.timings),
            against_best=geometric_mean(beside) if len(beside) == len(self.timings) else None,
        )
