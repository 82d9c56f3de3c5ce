"""What the judge says: a verdict with its evidence and its raw samples, as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal[
    "proven", "correct", "wrong", "cheating", "crashed", "timed_out", "refused", "unmeasured"
]


class Ratio(BaseModel):
    """Baseline time over new time, with its interval: above 1 is faster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ratio: float
    low: float
    high: float
    confidence: float | None = None
    """Of the interval of each case: 0.983 for a kernel, whose three looks together err in at most
    5 %. None in verdicts from before it was kept."""


class Evidence(BaseModel):
    """One thing that was checked, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    check: str
    passed: bool | None
    """None where it does not apply: the kernel declined the case, and torch would compute it."""
    detail: str = ""


class TimedSample(BaseModel):
    """One raw time of one arm: `measure.samples.Sample`, with the case it belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str
    arm: str
    launch: int
    round: int
    position: int
    iterations: int
    wall_time_s: float
    cpu_time_s: float
    """As the arm's own process reported it: for a candidate, a claim."""


class Speedup(BaseModel):
    """Against whom how fast; None was not measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vs_reference: Ratio | None = None
    vs_compile: Ratio | None = None


class Verdict(BaseModel):
    """The judge's answer on one kernel for one problem.

    proven: right, and faster than the reference beyond the A/A floor. correct: right, but not
    faster, undecided, or not timed. wrong: an answer is not right. cheating: it tried to fool the
    judge, with evidence. crashed, timed_out: its process died or was too slow. refused: a bad
    problem or source. unmeasured: the judge could not do its work, or doubts what it saw, and says
    why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    reason: str
    evidence: list[Evidence] = Field(default_factory=list)
    speedup: Speedup = Field(default_factory=Speedup)
    not_timed: str = ""
    """Why the speed of a `correct` kernel was not measured, where it was to be."""
    static: dict[str, Any] | None = None
    """What a Triton or HIP kernel compiles to for AMD targets, as `inspect_kernel` gives it."""
    environment: dict[str, Any] = Field(default_factory=dict)
    isolation: str
    kernel_hash: str
    problem_hash: str
    samples: list[TimedSample] = Field(default_factory=list)
