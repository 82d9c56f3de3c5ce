"""Plans of a compiled step, which has no blocks in its graph: each is compiled and measured.

The partitioner of AOTAutograd recomputes by itself, and Inductor reorders and reuses, so no sum
over blocks predicts the peak. The eager costs tell which plan is the best for each eager peak.
Among these plans, halving finds the one that recomputes least of those that fit as measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ratchet.train.memory.costs import BlockCosts
from ratchet.train.memory.knapsack import FitPlan, best_plan, least_plan
from ratchet.train.memory.measured import MeasuredStep

MOST: Final = 6
"""Plans that are compiled between the one that keeps all and the smallest."""
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
