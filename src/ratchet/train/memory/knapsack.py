"""Choose what each block keeps: the least recomputation whose peak is within a budget.

A knapsack whose items are blocks. A plan's peak depends on the blocks before each part only by the
sum of what they saved, so dynamic programming over (block, sum) is exact. Sums are rounded up to
a 65536th of the budget, which bounds the work; the plan found is within the budget for certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.train.memory.costs import BlockCosts

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
        return _best_uniform(costs, budget_bytes)
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
    return _undominated(found)


def _undominated(states: dict[int, tuple[float, str]]) -> dict[int, tuple[float, str]]:
    """Drop states that save more than another and take no less time."""
    kept: dict[int, tuple[float, str]] = {}
    least_s = math.inf
    for total in sorted(states):
        if states[total][0] < least_s:
            kept[total], least_s = states[total], states[total][0]
    return kept


def _best_uniform(costs: BlockCosts, budget_bytes: int) -> FitPlan | None:
    plans = [plan_of(costs, choice * len(costs.saved)) for choice in costs.choices]
    fitting = [plan for plan in plans if plan.predicted_bytes <= budget_bytes]
    return min(fitting, key=lambda plan: plan.added_s, default=None)


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
    """Return the plan of these choices with its prediction."""
    return FitPlan(
        choices=choices, predicted_bytes=costs.peak_bytes(choices), added_s=costs.added_s(choices)
    )
