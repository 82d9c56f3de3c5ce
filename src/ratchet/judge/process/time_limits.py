"""Limits on the time of a verdict, and of each step of a process within it."""

from __future__ import annotations

import time
from dataclasses import dataclass

STEP_S = 30.0
"""What a step of a candidate's process may be at work at least, whatever is left of the time limit:
compiling, importing torch and the kernel, mapping memory."""
FIRST_CALL_S = 120.0
"""What a Python kernel's first call in a process on tensors of new sizes gets on top: torch.compile
and Triton compile in it. Their compilers belong to the family, and are at work then."""
REFERENCE_STEP_S = 120.0
"""The same for the reference worker, which is trusted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The end of the time that a verdict may take.

    It decides how much is measured. No step is cut short by it: each has a limit of its own.
    """

    deadline: float
    limit_s: float

    @staticmethod
    def of(limit_s: float) -> Clock:
        """A clock that runs out `limit_s` seconds from now."""
        return Clock(deadline=time.monotonic() + limit_s, limit_s=limit_s)

    def anew(self) -> Clock:
        """A clock of the same limit that starts now."""
        return Clock.of(self.limit_s)

    @property
    def over(self) -> bool:
        """True if it has run out."""
        return time.monotonic() >= self.deadline

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def step_s(self) -> float:
        """Seconds that a step of a candidate's process may be at work."""
        return max(STEP_S, self.left_s)

    @property
    def reference_s(self) -> float:
        """Seconds that a step of the reference worker may be at work."""
        return max(REFERENCE_STEP_S, self.left_s)
