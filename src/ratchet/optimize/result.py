"""What one turn of the ratchet found: the document behind `result.json` and the report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Decision = Literal["kept", "dropped", "refused", "not_applicable", "not_tried"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Speedup(_Model):
    """Baseline time over new time, with its interval and the answer in words."""

    ratio: float
    low: float
    high: float
    answer: Literal["faster", "slower", "equivalent", "undecided"]


class ArmResult(_Model):
    """One way of running the step, as the final paired run timed it."""

    key: Literal["as_written", "best_compile", "best_compile_same", "same_arithmetic", "ratchet"]
    title: str
    step_time_s: float
    low_s: float
    high_s: float
    tokens_per_s: float
    mfu: float
    peak_memory_bytes: int
    setup_time_s: float
    config: dict[str, Any]


class Rival(_Model):
    """One torch.compile mode that was tried as a baseline."""

    title: str
    precision: str
    step_time_s: float | None
    setup_time_s: float | None = None
    reason: str = ""


class Change(_Model):
    """One lever or kernel: what it gave, and why it was kept or dropped."""

    name: str
    kind: Literal["lever", "kernel"]
    decision: Decision
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str
    expected: str = ""
    source: str = ""
    changes_arithmetic: bool = False


class OpTime(_Model):
    """One operator's share of a step."""

    name: str
    category: str
    time_s: float
    calls: int
    share: float
    bound: str


class IdentityResult(_Model):
    """The time of one step, split so that the parts sum to the window."""

    window_s: float
    compute_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float


class FindingResult(_Model):
    """What the trace says could be won, and what tries it."""

    name: str
    evidence: str
    gain_s: float
    """At most this much of a step."""
    levers: list[str]
    remedy: str


class StepProfile(_Model):
    """Where one step's time goes, by operator, most expensive first."""

    total_s: float
    ops: list[OpTime]
    identity: IdentityResult
    findings: list[FindingResult]
    trace: str
    """The trace's file, for `ratchet trace report`."""


class GradientResult(_Model):
    passed: bool
    worst_parameter: str
    worst_ratio: float
    detail: str


class LossResult(_Model):
    passed: bool
    baseline: list[list[float]] = Field(default_factory=list)
    candidate: list[list[float]] = Field(default_factory=list)
    detail: str


class CompileCost(_Model):
    """What the recipe's longer start costs, and when it has paid."""

    extra_setup_s: float
    pays_after_steps: int | None


class Paste(_Model):
    apply: list[str]
    undo: list[str]


class Paths(_Model):
    recipe: str
    result: str
    report: str


class OptimizeResult(_Model):
    """The whole answer of `ratchet optimize`."""

    workload: str
    source: str
    unit: str = "tokens"
    device: dict[str, Any]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float
    resumed: bool
    arms: list[ArmResult]
    speedup: dict[str, Speedup]
    floor: dict[str, float]
    best_compile: str
    rivals: list[Rival]
    changes: list[Change]
    profile_before: StepProfile | None
    profile_after: StepProfile | None
    gradients: GradientResult | None
    losses: LossResult | None
    samples: list[dict[str, Any]]
    compile: CompileCost
    paste: Paste
    paths: Paths
    verdicts: list[dict[str, Any]]
    warnings: list[str]
