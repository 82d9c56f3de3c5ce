"""Choose the kernels that get a verdict at the end of a search, and its strictness.

The best of N screened kernels looks faster than it is: the screening chose it for its luck too (the
winner's curse). So no screened ratio is ever reported as a result. The search ends first. Then the
chosen kernel is timed anew by a verdict of its own: new processes, new values, none of the samples
that chose it. Given the choice, those samples are independent of it, so that the verdict errs as
often as it says, however many kernels were screened.

What has to be paid for is looking at more than one verdict. The number of verdicts that may count
is fixed by the budget before the search begins; if it is m, each is given at the level that m
verdicts together may err by (Bonferroni: `KernelJudge.judge(among=m)`). A kernel that turns out
wrong, or crashes, is never timed and so cannot be falsely proven: the next one takes its place at
no price.
"""

from __future__ import annotations

from typing import Final

PLAN: Final = ((180.0, 1), (900.0, 2))
"""Budgets in seconds below which so many verdicts may count."""
MOST: Final = 3
VERDICT_S: Final = 20.0
"""Time that is kept for each planned verdict."""
COMPILE_S: Final = 20.0
"""The same, for torch.compile of the reference beside it."""
LARGEST_SHARE: Final = 0.5
"""Largest share of the budget that is kept for verdicts."""


def planned_verdicts(budget_s: float) -> int:
    """Return how many verdicts with a time may be taken at the end of a search."""
    return next((count for limit_s, count in PLAN if budget_s < limit_s), MOST)


def kept_s(budget_s: float, *, against_compile: bool = False) -> float:
    """Return how much of a budget is kept for the verdicts, in seconds."""
    each_s = VERDICT_S + (COMPILE_S if against_compile else 0.0)
    return min(planned_verdicts(budget_s) * each_s, LARGEST_SHARE * budget_s)
