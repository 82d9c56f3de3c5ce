"""Time limits of a screening's candidate: shorter than a verdict's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ratchet.base.process.time_limits import Clock
from ratchet.judge.trial.kernel_checks import CaseFacts

SLOWEST_FACTOR: Final = 30.0
SLOWEST_FLOOR_S: Final = 1.0
"""A call may be at work for this long, and so many times the reference's time on top."""
STEP_S: Final = 10.0
"""Work that a step of a candidate's process may take: importing its source, mapping memory."""
FIRST_CALL_S: Final = 20.0
"""The same for the compilers that a Python kernel's first call may start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickClock(Clock):
    """A clock whose steps are short: whoever is slow is asked for a verdict instead."""

    @staticmethod
    def of_s(limit_s: float) -> QuickClock:
        """A clock that runs out `limit_s` seconds from now."""
        return QuickClock(deadline=time.monotonic() + limit_s, limit_s=limit_s)

    @property
    def step_s(self) -> float:
        return STEP_S


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickFacts(CaseFacts):
    """A case on which a candidate is given up sooner than in a verdict."""

    def limit_s(self, calls: int) -> float:
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s
