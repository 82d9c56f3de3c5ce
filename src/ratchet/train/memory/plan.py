"""Choose what each block keeps: costs of each choice, plans, and what else would fit.

A step with one choice for all blocks is measured for each choice. In a step whose blocks differ in
their choice, the memory at any moment is what the blocks before the running one have saved, plus
what the running part needs by itself:

    peak = max over parts of (sum of saved[j, choice j] over the blocks j before it + own)

`own` is the part's peak in the measured step less what the blocks before it had saved there, so a
plan of equal choices predicts the measured peak exactly. Gradients of the blocks behind it, the
weights and the optimizer's state are in `own`: they are the same for every choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ratchet.train.memory.measured import MeasuredStep


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCosts:
    """Bytes and seconds by block and choice (a letter of `checkpointing.CHOICES`)."""

    saved: tuple[Mapping[str, float], ...]
    """Bytes that a block keeps from its forward pass to its backward pass, its output included."""
    own: tuple[Mapping[str, float], ...]
    """The peak while a block runs, without what the blocks before it have saved."""
    outside: Mapping[int, float]
    """The peak outside of the blocks, after so many of them, without what these have saved."""
    time_s: tuple[Mapping[str, float], ...]  # Seconds that a choice adds to the step, by block
    mixes: bool  # False if the blocks do not run one after the other: then all choose the same

    @property
    def choices(self) -> str:
        return "".join(self.saved[0])

    def peak_bytes(self, plan: str) -> int:
        """Return the predicted peak of a step whose blocks choose the plan's letters."""
        before, peak = 0.0, self.outside.get(0, 0.0)
        for place, choice in enumerate(plan):
            peak = max(peak, before + self.own[place].get(choice, 0.0))
            before += self.saved[place][choice]
            peak = max(peak, before + self.outside.get(place + 1, 0.0))
        return round(peak)

    def added_s(self, plan: str) -> float:
        """Return the time that the plan's choices add to the step."""
        return sum(times[choice] for times, choice in zip(self.time_s, plan, strict=True))


class _MeasuredWalk:
    """One measured step, its stretches taken in order."""

    def __init__(self, step: MeasuredStep, blocks: int) -> None:
        self.saved = [0] * blocks
        self.own = [0] * blocks
        self.time_s = [0.0] * blocks
        self.kept_s = [0.0] * blocks
        self.both_s = [0.0] * blocks
        self.outside: dict[int, int] = {}
        self.in_order = True
        held: list[int] = []  # what each block under way has saved
        for stretch in step.stretches:
            place = stretch.place
            if place is None:
                own = stretch.peak_bytes - sum(held)
                self.outside[len(held)] = max(self.outside.get(len(held), 0), own)
                continue
            if stretch.backward and held:
                held.pop()
            self.in_order = self.in_order and len(held) == place
            self.own[place] = max(self.own[place], stretch.peak_bytes - sum(held))
            self.both_s[place] += stretch.time_s
            if not stretch.backward:
                saved = stretch.end_bytes - stretch.start_bytes
                held.append(saved)
                self.saved[place] = max(self.saved[place], saved)
                self.time_s[place] += stretch.time_s
                self.kept_s[place] += stretch.kept_s
        self.in_order = self.in_order and all(self.own) and not held


def costs_of(steps: Mapping[str, MeasuredStep], blocks: int) -> BlockCosts:
    """Return the costs from eager steps, one measured for each choice."""
    walks = {choice: _MeasuredWalk(step, blocks) for choice, step in steps.items()}
    first = next(iter(walks.values()))
    places = range(blocks)
    outside = {
        done: float(max(walk.outside.get(done, 0) for walk in walks.values()))
        for done in first.outside
    }
    # The times of blocks that save as much differ only by noise.
    alike = [[i for i, saved in enumerate(first.saved) if saved == own] for own in first.saved]
    return BlockCosts(
        saved=tuple({c: float(walk.saved[i]) for c, walk in walks.items()} for i in places),
        own=tuple({c: float(walk.own[i]) for c, walk in walks.items()} for i in places),
        outside=outside,
        time_s=tuple({c: _added_s(walks, c, alike[i]) for c in walks} for i in places),
        mixes=all(walk.in_order for walk in walks.values()),
    )


def _added_s(walks: Mapping[str, _MeasuredWalk], choice: str, alike: Sequence[int]) -> float:
    """Return the forward time that is spent again; for an offload, the time of both passes more."""
    plain = walks.get("n") or walks["f"]
    if choice == "f":
        return median(plain.time_s[i] for i in alike)
    if choice == "s":
        return median(max(plain.time_s[i] - plain.kept_s[i], 0.0) for i in alike)
    if choice == "o":
        return max(median(walks["o"].both_s[i] - plain.both_s[i] for i in alike), 0.0)
    return 0.0


# Choose what each block keeps: the least recomputation whose peak is within a budget.
#
# A knapsack whose items are blocks. A plan's peak depends on the blocks before each part only by
# the sum of what they saved, so dynamic programming over (block, sum) is exact. Sums are rounded
# up to a 65536th of the budget, which bounds the work; the plan found is within the budget for
# certain.

GRAINS: Final = 1 << 16
HALVINGS: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class FitPlan:
    """Each block's choice, and what is expected of it."""

    choices: str
    predicted_bytes: int
    added_s: float

    @property
    def checkpointing(self) -> str:
        """Return the value for a StepConfig; a model without blocks has no choice."""
        return f"plan:{self.choices}" if self.choices else "none"


def best_plan(costs: BlockCosts, budget_bytes: int) -> FitPlan | None:
    """Return the plan that adds the least time within the budget; None if none fits."""
    if not costs.mixes:
        plans = (plan_of(costs, choice * len(costs.saved)) for choice in costs.choices)
        fitting = (plan for plan in plans if plan.predicted_bytes <= budget_bytes)
        return min(fitting, key=lambda plan: plan.added_s, default=None)
    if costs.outside.get(0, 0.0) > budget_bytes:
        return None
    grain = max(budget_bytes / GRAINS, 1.0)
    states: dict[int, tuple[float, str]] = {0: (0.0, "")}
    for place in range(len(costs.saved)):
        states = _one_block(costs, place, states, budget_bytes, grain)
    if not states:
        return None
    # Of equal times the smaller sum.
    _, _, choices = min((time_s, total, plan) for total, (time_s, plan) in states.items())
    return plan_of(costs, choices)


def _one_block(
    costs: BlockCosts,
    place: int,
    states: dict[int, tuple[float, str]],
    budget_bytes: int,
    grain: float,
) -> dict[int, tuple[float, str]]:
    """Return the cheapest plan up to this block for each sum of saved bytes, in grains."""
    found: dict[int, tuple[float, str]] = {}
    behind = costs.outside.get(place + 1, 0.0)
    for before, (time_s, plan) in states.items():
        for choice, saved in costs.saved[place].items():
            after = before + math.ceil(saved / grain)
            needed = max(before * grain + costs.own[place].get(choice, 0.0), after * grain + behind)
            if needed > budget_bytes:
                continue
            option = (time_s + costs.time_s[place][choice], plan + choice)
            found[after] = min(found.get(after, option), option)
    # States that save more than another and take no less time are dropped.
    kept: dict[int, tuple[float, str]] = {}
    least_s = math.inf
    for total in sorted(found):
        if found[total][0] < least_s:
            kept[total], least_s = found[total], found[total][0]
    return kept


def least_plan(costs: BlockCosts) -> FitPlan:
    """Return the plan with the smallest peak, found by halving the budget."""
    best = plan_of(costs, costs.choices[-1] * len(costs.saved))
    low = 0
    for _ in range(HALVINGS):
        middle = (low + best.predicted_bytes) // 2
        found = best_plan(costs, middle)
        if found is None:
            low = middle
        else:
            best = found
        if best.predicted_bytes - low <= best.predicted_bytes // 1000:
            break
    return best


def plan_of(costs: BlockCosts, choices: str) -> FitPlan:
    return FitPlan(
        choices=choices, predicted_bytes=costs.peak_bytes(choices), added_s=costs.added_s(choices)
    )


# Plans of a compiled step, which has no blocks in its graph: each is compiled and measured.
#
# The partitioner of AOTAutograd recomputes by itself, and Inductor reorders and reuses, so no sum
# over blocks predicts the peak. The eager costs tell which plan is the best for each eager peak.
# Among these plans, halving finds the one that recomputes least of those that fit as measured.

MOST: Final = 6  # Plans that are compiled between the one that keeps all and the smallest
CLOSE: Final = 0.01


class CompiledPlans:
    """The plans that were measured, and the search among those that were not."""

    def __init__(self, costs: BlockCosts, measured: Callable[[str], MeasuredStep | None]) -> None:
        """Take the eager costs; `measured` compiles a plan's choices and returns its step."""
        self._costs = costs
        self._measured = measured
        self.steps: dict[str, MeasuredStep | None] = {}

    def search(self, budget_bytes: int) -> None:
        """Measure plans until no other is likely to fit and to recompute less."""
        blocks = len(self._costs.saved)
        most, least = self._costs.choices[0] * blocks, least_plan(self._costs)
        if self._fits(most, budget_bytes):
            return
        if not self._fits(least.choices, budget_bytes):
            self._fits("f" * blocks, budget_bytes)
            return
        low, high = least.predicted_bytes, self._costs.peak_bytes(most)
        known = len(self.steps)
        while high - low > CLOSE * high and len(self.steps) < known + MOST:
            middle = (low + high) // 2
            plan = best_plan(self._costs, middle)
            if plan is not None and self._fits(plan.choices, budget_bytes):
                low = middle
            else:
                high = middle

    def best(self, room_bytes: int) -> FitPlan | None:
        """Return the measured plan within `room_bytes` that recomputes least; None if none is."""
        fitting = [plan for plan in self._plans() if plan.predicted_bytes <= room_bytes]
        return min(fitting, key=lambda plan: plan.added_s, default=None)

    def least(self) -> FitPlan | None:
        """Return the measured plan with the smallest peak."""
        return min(self._plans(), key=lambda plan: plan.predicted_bytes, default=None)

    def _plans(self) -> list[FitPlan]:
        return [
            FitPlan(
                choices=choices,
                predicted_bytes=step.peak_bytes,
                added_s=self._costs.added_s(choices),
            )
            for choices, step in self.steps.items()
            if step is not None
        ]

    def _fits(self, choices: str, budget_bytes: int) -> bool:
        if choices not in self.steps:
            self.steps[choices] = self._measured(choices)
        step = self.steps[choices]
        return step is not None and step.peak_bytes <= budget_bytes


# Other changes that would fit when no choice of checkpointing does.
#
# For a step with B sequences a batch whose smallest peak is `states + gradients + varying`:
#
#     a batch of b:          states + gradients + varying b / B
#     N sharding ranks:      (states + all gradients) / N + one whole block + varying
#
# `states` are parameters and optimizer state, `varying` is what is alive beside states and
# gradients at the peak. Sharding is that of FSDP2: parameters, gradients and optimizer state are
# split, and one block's weights and gradients are whole at a time.

MOST_RANKS: Final = 1 << 16


def remedies(least: MeasuredStep, budget_bytes: int, *, samples: int, block_bytes: int) -> str:
    """Return the smallest changes that would fit, from the measured step with the smallest peak."""
    parts, peak = least.parts, least.peak_bytes
    varying = max(peak - parts.states - parts.gradients, 0)
    everything = parts.states + parts.parameters  # a gradient for each parameter
    batch = samples * (budget_bytes - parts.states - parts.gradients) // max(varying, 1)
    room_bytes = budget_bytes - varying - 2 * block_bytes
    ranks = max(2, math.ceil(everything / room_bytes)) if room_bytes > 0 else MOST_RANKS + 1
    found = [f"a batch of {min(batch, samples - 1)}"] if batch >= 1 and samples > 1 else []
    found += [f"sharding over {ranks} ranks"] if ranks <= MOST_RANKS else []
    return ", ".join(found) or "a smaller model or a larger device alone"
