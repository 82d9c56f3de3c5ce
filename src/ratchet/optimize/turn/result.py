"""What one turn of the ratchet found: the document behind `result.json` and the report."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Decision = Literal["kept", "dropped", "refused", "not_applicable", "not_tried"]
RecipeIs = Literal["proven", "rival", "as_written"]
Basis = Literal["alone", "bundle", "rival"]
ArmKey = Literal["as_written", "best_compile", "best_compile_same", "same_arithmetic", "ratchet"]


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

    key: ArmKey
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
    basis: Basis | None = None
    """What a kept change rests on: a measurement of its own, the bundle that was proven whole, or
    the rival, which has it too. None where it was not kept."""
    winnable_s: float | None = None
    """At most this much of a step could be won by it, by the profile; None where not known."""


class OpTime(_Model):
    """One operator's share of a step."""

    name: str
    category: str
    time_s: float
    calls: int
    share: float
    bound: str
    least_s: float | None = None
    """The roofline's bound at measured ceilings; None where the work is not known."""


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
    system_s: float = 0.0
    """CPU time of one step inside the operating system, of all threads: page faults are in it. It
    overlaps with the operators' times; 0 where it is not known."""


class CategoryLimit(_Model):
    """One category's part of a step, in seconds of an unprofiled step."""

    category: str
    time_s: float
    least_s: float
    """The roofline's bound of the operators whose work is known."""
    unknown_s: float
    """Time of operators whose bound is not known: counted as winnable, so that `most` holds."""
    winnable_s: float
    """`time_s - least_s`."""


class StepLimit(_Model):
    """How far one way of running the step is from what this machine can do.

    The bound is the sum of each operator's roofline at the measured ceilings, in the arithmetic of
    this step. An operator whose work is not known has a bound of 0.
    """

    arm: ArmKey
    title: str
    step_time_s: float
    least_s: float
    share: float
    """`least_s / step_time_s`: the step runs at this share of what the machine can do."""
    most: float | None
    """A step can become at most this many times faster; None where no bound is known."""
    categories: list[CategoryLimit]
    """The one with most time to win first."""


class Omission(_Model):
    """Something that the turn left out, and why."""

    what: str
    """A noun phrase: `a third launch of the final run`."""
    reason: str
    for_want_of_budget: bool = True
    """False where a measurement ruled it out."""


class BudgetUse(_Model):
    """Where the turn's budget went, in seconds."""

    budget_s: float
    spent_s: float
    """Recalled evidence counts with the time it once took."""
    reserved_for_proof_s: float
    launches: int
    """Of the final run; 0 where there was no time for one."""
    launches_asked: int
    omissions: list[Omission]


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
    recipe_is: RecipeIs = "proven"
    """`proven`: the final run called it faster than its rival. `rival`: torch.compile's best, as
    nothing was proven faster. `as_written`: the step as written was faster still."""
    recipe_because: str = ""
    """Why, in one sentence."""
    limit: StepLimit | None = None
    """Of the recipe where it was profiled, else of the rival; None without a profile."""
    budget: BudgetUse | None = None
