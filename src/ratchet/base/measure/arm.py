"""The arm protocol: an arm runs a number of iterations and reports their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Time of a whole batch of iterations, in seconds."""

    wall_time_s: float
    cpu_time_s: float


class ArmLeft(Exception):
    """Raised by an arm that takes part in no further round."""


class Arm(Protocol):
    """One side of a comparison, warm and ready to run."""

    @property
    def name(self) -> str: ...

    def run(self, iterations: int) -> Timing:
        """Run `iterations` iterations and return their total time."""
        ...
