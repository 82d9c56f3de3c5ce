"""The result of a turn as the report reads it: plain data, as `result.json` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast


class Speedup(TypedDict):
    ratio: float
    low: float
    high: float
    answer: str


class Arm(TypedDict):
    key: str
    title: str
    step_time_s: float
    low_s: float
    high_s: float
    tokens_per_s: float
    mfu: float
    peak_memory_bytes: int
    setup_time_s: float
    config: dict[str, Any]


class Rival(TypedDict):
    title: str
    precision: str
    step_time_s: float | None
    setup_time_s: float | None
    reason: str


class Change(TypedDict):
    name: str
    kind: str
    decision: str
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    expected: str
    source: str
    changes_arithmetic: bool
    basis: NotRequired[str | None]
    winnable_s: NotRequired[float | None]


class Op(TypedDict):
    name: str
    category: str
    time_s: float
    calls: int
    share: float
    bound: str
    least_s: NotRequired[float | None]


class Identity(TypedDict):
    window_s: float
    compute_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float


class Finding(TypedDict):
    name: str
    evidence: str
    gain_s: float
    levers: list[str]
    remedy: str


class Profile(TypedDict):
    total_s: float
    ops: list[Op]
    identity: Identity
    findings: list[Finding]
    trace: str
    system_s: NotRequired[float]


class CategoryLimit(TypedDict):
    category: str
    time_s: float
    least_s: float
    unknown_s: float
    winnable_s: float


class StepLimit(TypedDict):
    arm: str
    title: str
    step_time_s: float
    least_s: float
    share: float
    most: float | None
    categories: list[CategoryLimit]


class Omission(TypedDict):
    what: str
    reason: str
    for_want_of_budget: bool


class BudgetUse(TypedDict):
    budget_s: float
    spent_s: float
    reserved_for_proof_s: float
    launches: int
    launches_asked: int
    omissions: list[Omission]


class Gradients(TypedDict):
    passed: bool
    worst_parameter: str
    worst_ratio: float
    detail: str


class Losses(TypedDict):
    passed: bool
    baseline: list[list[float]]
    candidate: list[list[float]]
    detail: str


class CompileCost(TypedDict):
    extra_setup_s: float
    pays_after_steps: int | None


class Paste(TypedDict):
    apply: list[str]
    undo: list[str]


class Paths(TypedDict):
    recipe: str
    result: str
    report: str


class Result(TypedDict):
    """One turn's whole answer; the fields are those of `optimize.result.OptimizeResult`."""

    workload: str
    source: str
    device: dict[str, Any]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float
    resumed: bool
    arms: list[Arm]
    speedup: dict[str, Speedup]
    floor: dict[str, float]
    best_compile: str
    rivals: list[Rival]
    changes: list[Change]
    profile_before: Profile | None
    profile_after: Profile | None
    gradients: Gradients | None
    losses: Losses | None
    samples: list[dict[str, Any]]
    compile: CompileCost
    paste: Paste
    paths: Paths
    unit: NotRequired[str]
    """tokens or images; tokens where it is not said."""
    verdicts: list[dict[str, Any]]
    warnings: list[str]
    recipe_is: NotRequired[str]
    recipe_because: NotRequired[str]
    limit: NotRequired[StepLimit | None]
    budget: NotRequired[BudgetUse | None]


def as_result(document: Mapping[str, Any]) -> Result:
    """Read a result's document (`result.model_dump()` or `result.json`) as what it is."""
    return cast(Result, document)
