"""The result of one optimization turn: the document behind `result.json` and the report."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ratchet.base.measure import Ratio, Sample
from ratchet.judge.verdict import Verdict
from ratchet.train.workloads.config import StepConfig

Decision = Literal["kept", "dropped", "refused", "not_applicable", "not_tried"]
RecipeIs = Literal["proven", "rival", "as_written"]
Basis = Literal["alone", "bundle", "rival"]
ArmKey = Literal["as_written", "best_compile", "best_compile_same", "same_arithmetic", "ratchet"]
COMPARED: Final[dict[str, tuple[ArmKey, ArmKey]]] = {
    "vs_written": ("as_written", "ratchet"),
    "vs_compile": ("best_compile", "ratchet"),
    "vs_compile_same_arithmetic": ("best_compile_same", "same_arithmetic"),
}
"""The two arms behind each comparison."""


class _Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class ArmResult(_Result, kw_only=True):
    """One way of running the step, as the final paired run timed it."""

    key: ArmKey
    title: str
    step_time_s: float
    low_s: float | None
    """The ends of its 95 % interval; None with too few samples for one."""
    high_s: float | None
    tokens_per_s: float
    mfu: float
    peak_memory_bytes: int
    setup_time_s: float
    config: StepConfig


class Rival(_Result, kw_only=True):
    """One torch.compile mode that was tried as a baseline."""

    title: str
    precision: str
    step_time_s: float | None
    setup_time_s: float | None = None
    reason: str = ""


class Change(_Result, kw_only=True):
    """One lever or kernel: its effect, and the reason why it was kept or dropped."""

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
    """The evidence for a kept change; None if it was not kept.

    `alone`: its own measurement. `bundle`: the bundle, proven as a whole. `rival`: the rival has it
    too.
    """
    winnable_s: float | None = None
    """Upper bound, from the profile, of the seconds of a step it could win; None if unknown."""


class OpTime(_Result, kw_only=True):
    """One operator's share of a step."""

    name: str
    category: str
    time_s: float
    calls: int
    share: float
    bound: str
    least_s: float | None = None
    """The roofline bound at measured ceilings; None if the work is unknown."""


class IdentityResult(_Result, kw_only=True):
    """The time of one step, split so that the parts sum to the window."""

    window_s: float
    compute_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float


class FindingResult(_Result, kw_only=True):
    """A possible gain found in the trace, and the levers that try it."""

    name: str
    evidence: str
    gain_s: float
    """Upper bound of the gain, in seconds of the profiled step."""
    levers: list[str]
    remedy: str


class StepProfile(_Result, kw_only=True):
    """One step's time by operator, most expensive first."""

    total_s: float
    ops: list[OpTime]
    identity: IdentityResult
    findings: list[FindingResult]
    trace: str
    """The trace file beside the result, for `ratchet trace report`."""
    system_s: float = 0.0
    """CPU seconds that all threads of one step spend in the operating system, page faults included.

    They overlap with the operators' times; 0 if unknown.
    """


class CategoryLimit(_Result, kw_only=True):
    """One category's part of a step, in seconds of an unprofiled step."""

    category: str
    time_s: float
    least_s: float
    """The roofline bound of the operators whose work is known."""
    unknown_s: float
    """Time of operators without a known bound; it counts as winnable, so that `most` holds."""
    winnable_s: float
    """`time_s - least_s`."""


class StepLimit(_Result, kw_only=True):
    """The gap between one way of running the step and this machine's limit.

    The bound is the sum of each operator's roofline at the measured ceilings, in this step's
    arithmetic. An operator with unknown work has a bound of 0.
    """

    arm: ArmKey
    title: str
    step_time_s: float
    least_s: float
    share: float
    """`least_s / step_time_s`: the share of the machine's limit at which the step runs."""
    most: float | None
    """Upper bound of the step's possible speed-up; None if no bound is known."""
    categories: list[CategoryLimit]
    """The categories, those with the most time to win first."""


class Omission(_Result, kw_only=True):
    """Something that the turn left out, and the reason."""

    what: str
    """A noun phrase: `a third launch of the final run`."""
    reason: str
    for_want_of_budget: bool = True
    """False if a measurement ruled it out."""


class Shortfall(_Result, kw_only=True):
    """The stages that the budget had no time for, and a budget that would do."""

    stages: list[str]
    enough_s: float
    """Estimated from what this turn's starts, compilations and verdicts took."""
    is_least: bool = False
    """True if it may still be too short: no compilation or no verdict ended that would tell."""


class BudgetUse(_Result, kw_only=True):
    """The use of the turn's budget, in seconds."""

    budget_s: float
    spent_s: float
    """Seconds spent; recalled evidence counts with the time it originally took."""
    reserved_for_proof_s: float
    launches: int
    """Launches of the final run; 0 if there was no time for one."""
    launches_asked: int
    omissions: list[Omission]
    took_s: dict[str, float] = {}
    """Seconds of this turn by what it did; arms that start meanwhile are not counted twice."""
    shortfall: Shortfall | None = None
    """None if the recipe is proven, or if every stage ran."""


class GradientResult(_Result, kw_only=True):
    passed: bool
    worst_parameter: str
    worst_ratio: float
    detail: str


class LossResult(_Result, kw_only=True):
    passed: bool
    baseline: list[list[float]] = []
    candidate: list[list[float]] = []
    detail: str


class LargerBatch(_Result, kw_only=True):
    """A larger batch that uses the device better; it is offered and never applied.

    Its rate is that of a few steps of the recipe's way to run it, without an interval.
    """

    batch_size: int
    batch_size_now: int
    unit: str
    rate: float
    """Units per second with the larger batch."""
    rate_now: float
    idle_share: float
    """Share of the step as it is in which the device computes nothing."""
    peak_memory_bytes: int = 0


class KernelVerdict(Verdict, frozen=True, kw_only=True):
    """A verdict on a kernel that the step may run, with the names of what it is about."""

    kernel: str
    """The entry of a library kernel; the kernel's name for a region."""
    problem: str
    library: str = ""
    """The library kernel; `region` for a kernel of the step's own graphs."""


class CompileCost(_Result, kw_only=True):
    """The cost of the recipe's longer start, and the steps that recover it."""

    extra_setup_s: float
    pays_after_steps: int | None


class Paste(_Result, kw_only=True):
    """Lines that install the recipe, and lines that undo it; none if the step stays as written."""

    apply: list[str]
    undo: list[str]


class Paths(_Result, kw_only=True):
    recipe: str
    result: str
    report: str


class OptimizeResult(_Result, kw_only=True):
    workload: str
    source: str
    unit: str = "tokens"
    device: dict[str, object]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float
    resumed: bool
    arms: list[ArmResult]
    speedup: dict[str, Ratio | None]
    """`vs_written`, `vs_compile` and `vs_compile_same_arithmetic`; None for what was not measured.
    """
    floor: dict[str, float] | None
    """`low` and `high` of the ratio between two copies of the rival; None if it was not measured.
    """
    not_measured: dict[str, str]
    """The reason for each comparison that is None, each arm that is absent, and absent losses."""
    best_compile: str
    rivals: list[Rival]
    changes: list[Change]
    profile_before: StepProfile | None
    profile_after: StepProfile | None
    """The recipe's profile; None if the step stays as it is written."""
    gradients: GradientResult | None
    losses: LossResult | None
    samples: list[Sample]
    compile: CompileCost
    paste: Paste
    paths: Paths
    verdicts: list[KernelVerdict]
    warnings: list[str]
    recipe_is: RecipeIs = "proven"
    """Origin of the recipe.

    `proven`: the final run called it faster than its rival. `rival`: torch.compile's best, because
    nothing was proven faster. `as_written`: the step as written was faster still.
    """
    recipe_because: str = ""
    """The reason for `recipe_is`, in one sentence."""
    limit: StepLimit | None = None
    """The recipe's limit if it was profiled, otherwise the rival's; None without a profile.
    """
    budget: BudgetUse | None = None
    larger_batch: LargerBatch | None = None
    """None where the device is busy, or where no larger batch was measured to be faster."""
