"""Fit a workload's step into a memory budget: measure, plan, run the plan, say what it needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ratchet.base.errors import DeviceError, PlanError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.plan.fit.arm import measure, memory_arm
from ratchet.plan.fit.costs import BlockCosts, compiled_costs, costs_of
from ratchet.plan.fit.knapsack import FitPlan, best_plan, least_plan
from ratchet.plan.fit.measured import MeasuredStep
from ratchet.plan.fit.remedies import remedies
from ratchet.workloads.blame import SMALLER
from ratchet.workloads.checkpointing import CHOICES

ATTEMPTS: Final = 3
"""Plans that are run: the next has the budget less what the last needed beyond its prediction."""
SMALLEST_FIRST: Final = "fsn"
"""The order in which choices are measured: once one does not fit, the larger ones do not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """The words of a call."""

    workload: str
    options: Mapping[str, Any] = field(default_factory=dict)
    budget_bytes: int | None = None
    compiled: bool = False
    fused: bool = False
    """Update with the optimizer's fused implementation, which holds no temporary tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedStep:
    """A plan, and what its step needed when it ran in a process of its own."""

    plan: FitPlan
    measured: MeasuredStep
    budget_bytes: int

    @property
    def fits(self) -> bool:
        return self.measured.peak_bytes <= self.budget_bytes

    @property
    def error(self) -> float:
        """Return how far the prediction was from the measured peak, relative to that."""
        return self.plan.predicted_bytes / self.measured.peak_bytes - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """The memory of a workload's step; without a budget only the step as written."""

    workload: str
    device: str
    compiled: bool
    written: MeasuredStep | None
    """None if it does not fit in the device's memory."""
    estimated_bytes: int | None
    """The estimate of torch's MemTracker for the eager step as written."""
    blocks: tuple[str, ...]
    costs: BlockCosts | None = None
    fitted: FittedStep | None = None


def step_memory(request: MemoryRequest, told: Callable[[str], None]) -> StepMemory:
    """Measure a step and, with a budget, fit it in; `told` hears what is under way.

    Raises PlanError if no plan fits, with what would, and DeviceError if the step as written does
    not fit and no budget was given.
    """
    options = dict(request.options)
    with memory_arm(request.workload, options) as arm:
        facts = arm.describe()
        told("the step as written")
        written = measure(arm, facts["written"], request.compiled, request.fused)
        estimated = arm.call("estimate") if not facts["own_step"] else None
        found = StepMemory(
            workload=request.workload,
            device=facts["device"],
            compiled=request.compiled,
            written=written,
            estimated_bytes=estimated,
            blocks=tuple(facts["blocks"]),
        )
        if request.budget_bytes is None:
            if written is None:
                raise DeviceError(
                    f"a step of {request.workload!r} does not fit in the memory of "
                    f"{found.device}; give a budget with --fit SIZE, or {SMALLER}"
                )
            return found
        costs, plan = _planned(request, found, facts, arm, told)
    return _tried(request, found, costs, plan, told)


def _planned(
    request: MemoryRequest,
    found: StepMemory,
    facts: Mapping[str, Any],
    arm: ArmProcess,
    told: Callable[[str], None],
) -> tuple[BlockCosts | None, FitPlan]:
    """Return the costs of the blocks' choices and the plan; PlanError if nothing fits."""
    assert request.budget_bytes is not None
    blocks, written = len(found.blocks), found.written
    if not blocks:
        if written is not None and written.peak_bytes <= request.budget_bytes:
            return None, _as_written(written)
        raise _no_plan(request, found, facts, written, None)
    known = {"n": written} if written is not None and facts["written"] == "none" else {}
    eager = {} if request.compiled else known
    steps = _measured_choices(arm, found, False, request.fused, eager, told)
    costs = costs_of(steps, blocks) if steps else None
    if costs is not None and request.compiled:
        steps = _measured_choices(arm, found, True, request.fused, known, told)
        costs = compiled_costs(costs, steps) if steps else None
    if costs is None:
        raise _no_plan(request, found, facts, None, None)
    plan = best_plan(costs, request.budget_bytes)
    if plan is None:
        least = least_plan(costs)
        smallest = min(steps.values(), key=lambda step: step.peak_bytes)
        raise _no_plan(request, found, facts, smallest, least)
    return costs, plan


def _measured_choices(
    arm: ArmProcess,
    found: StepMemory,
    compiled: bool,
    fused: bool,
    known: Mapping[str, MeasuredStep],
    told: Callable[[str], None],
) -> dict[str, MeasuredStep]:
    """Measure a step for each choice that is not known; an eager GPU may offload, too."""
    steps: dict[str, MeasuredStep] = {}
    offloads = found.device.startswith("cuda") and not compiled
    for choice in ("o" if offloads else "") + SMALLEST_FIRST:
        told(f"{'compiled' if compiled else 'eager'} step, every block {CHOICES[choice]}")
        plan = f"plan:{choice * len(found.blocks)}"
        step = known.get(choice) or measure(arm, plan, compiled, fused)
        if step is not None:
            steps[choice] = step
        elif choice != "o":
            break
    return dict(reversed(steps.items()))  # of equal plans, the one that recomputes less


def _as_written(written: MeasuredStep) -> FitPlan:
    return FitPlan(choices="", predicted_bytes=written.peak_bytes, added_s=0.0)


def _tried(
    request: MemoryRequest,
    found: StepMemory,
    costs: BlockCosts | None,
    plan: FitPlan,
    told: Callable[[str], None],
) -> StepMemory:
    """Run the plan in a fresh process; plan again, with less room, while it needs too much."""
    budget = room = request.budget_bytes or 0
    for attempt in range(ATTEMPTS):
        told(f"the plan {plan.choices or 'as written'}, in a process of its own")
        with memory_arm(request.workload, dict(request.options)) as arm:
            step = measure(arm, plan.checkpointing, request.compiled, request.fused)
        if step is None:
            raise PlanError(
                f"the plan {plan.checkpointing} did not run: {found.device} has no room for it; "
                "end other processes, or give a smaller --fit"
            )
        fitted = FittedStep(plan=plan, measured=step, budget_bytes=budget)
        room -= max(step.peak_bytes - plan.predicted_bytes, 0)
        other = best_plan(costs, room) if costs is not None else None
        if fitted.fits or other is None or other == plan or attempt + 1 == ATTEMPTS:
            break
        plan = other
    return StepMemory(
        workload=found.workload,
        device=found.device,
        compiled=found.compiled,
        written=found.written,
        estimated_bytes=found.estimated_bytes,
        blocks=found.blocks,
        costs=costs,
        fitted=fitted,
    )


def _no_plan(
    request: MemoryRequest,
    found: StepMemory,
    facts: Mapping[str, Any],
    smallest: MeasuredStep | None,
    least: FitPlan | None,
) -> PlanError:
    """Return the line that says the least that would fit, and what else would."""
    assert request.budget_bytes is not None
    title = f"a step of {request.workload!r} does not fit in {mib(request.budget_bytes)}"
    if smallest is None:
        return PlanError(f"{title}, and not in the memory of {found.device}; {SMALLER}")
    states = smallest.parts.states
    least_bytes = least.predicted_bytes if least is not None else smallest.peak_bytes
    why = (
        f"parameters and optimizer state alone take {mib(states, up=True)}"
        if states > request.budget_bytes
        else "no choice of checkpointing is small enough"
    )
    other = remedies(
        smallest,
        request.budget_bytes,
        samples=facts["samples"],
        block_bytes=facts["block_bytes"],
    )
    return PlanError(
        f"{title}: {why}; the least that fits is --fit {mib(least_bytes, up=True)}; "
        f"within {mib(request.budget_bytes)} would fit {other}{_update(smallest, request)}"
    )


def _update(smallest: MeasuredStep, request: MemoryRequest) -> str:
    """Return a remedy if the update's temporary tensors are the peak."""
    at_update = smallest.parts.activations == 0 and smallest.parts.gradients > 0
    return ", or try --fused for the update" if at_update and not request.fused else ""


def mib(size_bytes: int, *, up: bool = False) -> str:
    """Return a size in whole MiB, as --fit takes it."""
    return f"{-(-size_bytes // (1 << 20)) if up else max(size_bytes >> 20, 1)}MiB"
