"""Fit a workload's step into a memory budget: measure, plan, run the plan, say what it needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from ratchet.base.errors import DeviceError, PlanError
from ratchet.judge.steps.arms import ArmProcess
from ratchet.train.levers import Lever, find_lever
from ratchet.train.levers.table import (
    CHUNKED_LOGITS,
    FUSED_OPTIMIZER,
    MICRO_BATCHES_NAME,
    UPDATE_IN_BACKWARD,
)
from ratchet.train.memory.arm import StepShape, measure, memory_arm, shape_of
from ratchet.train.memory.measured import MeasuredStep
from ratchet.train.memory.plan import (
    BlockCosts,
    CompiledPlans,
    FitPlan,
    best_plan,
    costs_of,
    least_plan,
    remedies,
)
from ratchet.train.workloads.blame import SMALLER
from ratchet.train.workloads.checkpointing import CHOICES
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.names import LoadOptions

Rung = tuple[Lever, ...]

Planner = Callable[[int], FitPlan | None]
"""Room in bytes -> the plan with the least recomputation in it."""
Told = Callable[[str], None]  # Hears what is under way

ATTEMPTS: Final = 3
"""Plans that are run: the next has the budget less what the last needed beyond its prediction."""
SMALLEST_FIRST: Final = "fsn"
"""The order in which choices are measured: once one does not fit, the larger ones do not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    workload: str
    options: LoadOptions = field(default_factory=LoadOptions)
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
    levers: tuple[str, ...] = ()  # Names of the levers that are pulled beside checkpointing

    @property
    def fits(self) -> bool:
        return self.measured.peak_bytes <= self.budget_bytes

    @property
    def error(self) -> float:
        """Return how far the prediction was from the measured peak, relative to that."""
        return self.plan.predicted_bytes / self.measured.peak_bytes - 1

    @property
    def lever(self) -> str:
        """Return the whole plan as a lever of `ratchet optimize`."""
        return "+".join((f"checkpointing={self.plan.checkpointing}", *self.levers))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """The memory of a workload's step; without a budget only the step as written."""

    workload: str
    device: str
    compiled: bool
    written: MeasuredStep | None  # None if it does not fit in the device's memory
    estimated_bytes: int | None  # The estimate of torch's MemTracker for the eager step as written
    blocks: tuple[str, ...]
    costs: BlockCosts | None = None
    fitted: FittedStep | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _FitSearch:
    """A step that is to fit, and the process that measures it."""

    request: MemoryRequest
    budget_bytes: int
    found: StepMemory
    shape: StepShape
    config: StepConfig  # The step as it was asked for
    arm: ArmProcess
    told: Told

    def measured(self, config: StepConfig, choices: str, rung: Rung = ()) -> MeasuredStep | None:
        """Measure a step whose blocks choose `choices`."""
        counts = (f"{choices.count(one)} {CHOICES[one]}" for one in dict.fromkeys(choices))
        words = ", ".join(counts) or "none"
        how = "eager" if config.compile_mode is None else "compiled"
        self.told(", ".join([f"{how} step, blocks {words}", *(lever.name for lever in rung)]))
        return measure(self.arm, planned(with_levers(config, rung), choices))


@dataclass(frozen=True, kw_only=True, slots=True)
class _FittingRung:
    """A plan on a rung of the ladder, and where others come from."""

    rung: Rung
    plan: FitPlan
    planner: Planner
    costs: BlockCosts | None


def step_memory(request: MemoryRequest, told: Told) -> StepMemory:
    """Measure a step and, with a budget, fit it in; `told` hears what is under way.

    Raises PlanError if no plan fits, with what would, and DeviceError if the step as written does
    not fit and no budget was given.
    """
    with memory_arm(request.workload, request.options) as arm:
        shape = shape_of(arm)
        config = msgspec.structs.replace(
            shape.written,
            compile_mode="default" if request.compiled else None,
            optimizer="fused" if request.fused else shape.written.optimizer,
        )
        told("the step as written")
        written = measure(arm, config)
        found = StepMemory(
            workload=request.workload,
            device=shape.device,
            compiled=request.compiled,
            written=written,
            estimated_bytes=arm.call("estimate") if not shape.own_step else None,
            blocks=shape.blocks,
        )
        if request.budget_bytes is None:
            if written is None:
                raise DeviceError(
                    f"a step of {request.workload!r} does not fit in the memory of "
                    f"{found.device}; give a budget with --fit SIZE, or {SMALLER}"
                )
            return found
        search = _FitSearch(
            request=request,
            budget_bytes=request.budget_bytes,
            found=found,
            shape=shape,
            config=config,
            arm=arm,
            told=told,
        )
        answer = _climbed(search)
    return _tried(search, answer)


def planned(config: StepConfig, choices: str) -> StepConfig:
    """Return the config whose blocks choose `choices`; a model without blocks has none."""
    return msgspec.structs.replace(config, checkpointing=f"plan:{choices}" if choices else "none")


def _climbed(search: _FitSearch) -> _FittingRung:
    """Return a plan on the first rung whose smallest step fits; PlanError if none does."""
    rungs = ladder(search.shape, search.config)
    known: dict[str, MeasuredStep] = {}
    smallest = "f" * len(search.shape.blocks)
    for rung in rungs:
        known = {}
        if not rung and search.found.written and search.shape.written.checkpointing == "none":
            known = {"n" * len(search.shape.blocks): search.found.written}
        if smallest not in known and (step := search.measured(search.config, smallest, rung)):
            known[smallest] = step
        if smallest in known and known[smallest].peak_bytes <= search.budget_bytes:
            break
    if not smallest:  # a model without blocks has no choice
        step = known.get(smallest)
        if step is None or step.peak_bytes > search.budget_bytes:
            raise _no_plan(search, step, None)
        whole = FitPlan(choices="", predicted_bytes=step.peak_bytes, added_s=0.0)
        return _FittingRung(rung=rung, plan=whole, planner=lambda room: None, costs=None)
    costs = costs_of(_eager_steps(search, rung, known), len(smallest)) if known else None
    if costs is None:
        raise _no_plan(search, None, None)
    if not search.request.compiled:
        plan = best_plan(costs, search.budget_bytes)
        if plan is None:
            raise _no_plan(search, known.get(smallest), least_plan(costs))
        return _FittingRung(
            rung=rung, plan=plan, costs=costs, planner=lambda room: best_plan(costs, room)
        )
    plans = CompiledPlans(costs, lambda choices: search.measured(search.config, choices, rung))
    plans.steps.update(known)
    plans.search(search.budget_bytes)
    best = plans.best(search.budget_bytes)
    if best is None:
        raise _no_plan(search, known.get(smallest), plans.least())
    return _FittingRung(rung=rung, plan=best, costs=costs, planner=plans.best)


def _eager_steps(
    search: _FitSearch, rung: Rung, known: dict[str, MeasuredStep]
) -> dict[str, MeasuredStep]:
    """Measure an eager step for each choice that is not in `known`; on a GPU, offload is one."""
    blocks = len(search.shape.blocks)
    eager = msgspec.structs.replace(search.config, compile_mode=None)
    steps: dict[str, MeasuredStep] = {}
    offloads = search.shape.device.startswith("cuda") and not search.request.compiled
    for choice in ("o" if offloads else "") + SMALLEST_FIRST:
        choices = choice * blocks
        step = None if search.request.compiled else known.get(choices)
        step = step or search.measured(eager, choices, rung)
        if step is not None:
            steps[choice] = step
        elif choice != "o":
            break
    return dict(reversed(steps.items()))  # of equal plans, the one that recomputes less


def _tried(search: _FitSearch, answer: _FittingRung) -> StepMemory:
    """Run the plan in a fresh process; plan again, with less room, while it needs too much."""
    room, plan, request = search.budget_bytes, answer.plan, search.request
    for attempt in range(ATTEMPTS):
        search.told(f"the plan {plan.choices or 'as written'}, in a process of its own")
        with memory_arm(request.workload, request.options) as arm:
            step = measure(arm, planned(with_levers(search.config, answer.rung), plan.choices))
        if step is None:
            raise PlanError(
                f"the plan {plan.checkpointing} did not run: {search.shape.device} has no room for "
                "it; end other processes, or give a smaller --fit"
            )
        fitted = FittedStep(
            plan=plan,
            measured=step,
            budget_bytes=search.budget_bytes,
            levers=tuple(lever.name for lever in answer.rung),
        )
        room -= max(step.peak_bytes - plan.predicted_bytes, 0)
        other = answer.planner(room)
        if fitted.fits or other is None or other == plan or attempt + 1 == ATTEMPTS:
            break
        plan = other
    return replace(search.found, costs=answer.costs, fitted=fitted)


def _no_plan(search: _FitSearch, smallest: MeasuredStep | None, least: FitPlan | None) -> PlanError:
    """Return the line that says the least that would fit, and what else would."""
    budget = mib(search.budget_bytes)
    title = f"a step of {search.request.workload!r} does not fit in {budget}"
    if smallest is None:
        return PlanError(f"{title}, and not in the memory of {search.shape.device}; {SMALLER}")
    states = smallest.parts.states
    least_bytes = least.predicted_bytes if least is not None else smallest.peak_bytes
    why = (
        f"parameters and optimizer state alone take {mib(states, up=True)}"
        if states > search.budget_bytes
        else "no checkpointing and no other lever makes it small enough"
    )
    other = remedies(
        smallest,
        search.budget_bytes,
        samples=search.shape.samples,
        block_bytes=search.shape.block_bytes,
    )
    return PlanError(
        f"{title}: {why}; the least that fits is --fit {mib(least_bytes, up=True)}; "
        f"within {budget} would fit {other}"
    )


def mib(size_bytes: int, *, up: bool = False) -> str:
    """Return a size in whole MiB, as --fit takes it."""
    return f"{-(-size_bytes // (1 << 20)) if up else max(size_bytes >> 20, 1)}MiB"


def ladder(shape: StepShape, config: StepConfig) -> list[Rung]:
    """Return the rungs, each with all levers that are pulled on it; the first has none.

    The fused update holds no temporary tensors. Chunked logits are never whole. An update in the
    backward pass holds one gradient at a time; micro-batches, which add gradients up, take its
    place. A lever that does not apply to the step is left out.
    """
    found: list[Rung] = [()]
    if not shape.own_step and not shape.why_not_fused and config.optimizer == "as_written":
        found.append((FUSED_OPTIMIZER,))
    if shape.has_head:
        found.append((*found[-1], CHUNKED_LOGITS))
    last = found[-1]
    if not shape.why_not_in_backward:
        found.append((*last, UPDATE_IN_BACKWARD))
    parts = 2
    while not shape.own_step and shape.samples % parts == 0:
        found.append((*last, find_lever(f"{MICRO_BATCHES_NAME}{parts}")))
        parts *= 2
    return found


def with_levers(config: StepConfig, rung: Rung) -> StepConfig:
    return msgspec.structs.replace(config, **{lever.field: lever.value for lever in rung})
